package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"
)

// Model is a model version in GET /admin/models, as far as tests look at it.
type Model struct {
	Name    string `json:"name"`
	Version string `json:"version"`
	Default bool   `json:"default"`
	State   string `json:"state"`
	Reason  string `json:"reason"`
	Workers struct {
		Ready int `json:"ready"`
		Total int `json:"total"`
	} `json:"workers"`
	Generation  int          `json:"generation"`
	Digest      string       `json:"digest"`
	Source      string       `json:"source"`
	Swap        string       `json:"swap"`
	Labels      []string     `json:"labels"`
	Updating    *Updating    `json:"updating"`
	LastFailure *LastFailure `json:"last_failure"`
}

// Updating is a generation that is being started.
type Updating struct {
	Digest string `json:"digest"`
	State  string `json:"state"`
}

// LastFailure is how the last update of a version failed.
type LastFailure struct {
	Digest   string `json:"digest"`
	Reason   string `json:"reason"`
	Attempts int    `json:"attempts"`
}

// Event is one of GET /admin/events and of a model's history.
type Event struct {
	ID         uint64    `json:"id"`
	At         time.Time `json:"at"`
	Model      string    `json:"model"`
	Version    string    `json:"version"`
	Kind       string    `json:"kind"`
	Generation int       `json:"generation"`
	Digest     string    `json:"digest"`
	Source     string    `json:"source"`
	Who        string    `json:"who"`
	Why        string    `json:"why"`
	Reason     string    `json:"reason"`
}

// StoreEntry is one of GET /admin/store.
type StoreEntry struct {
	Path     string `json:"path"`
	State    string `json:"state"`
	Reason   string `json:"reason"` // of the state
	Model    string `json:"model"`
	Digest   string `json:"digest"`
	Decision string `json:"decision"`
	Why      string `json:"why"` // of the decision
}

func (s *Server) admin(t *testing.T, path string, into any) {
	t.Helper()
	answer := s.MustAsk(t, http.StatusOK, http.MethodGet, s.Management+path, nil)
	if err := json.Unmarshal(answer.Body, into); err != nil {
		t.Fatalf("%s: %v: %s", path, err, answer.Body)
	}
}

// modelList is the answer of GET /admin/models.
type modelList struct {
	Models []Model `json:"models"`
}

// Models are all model versions of the server.
func (s *Server) Models(t *testing.T) []Model {
	t.Helper()
	var got modelList
	s.admin(t, "/admin/models", &got)
	return got.Models
}

// ServingDigest is the digest of what the default version of a model serves, for goroutines, which may not end the test; "" when there is no such model.
func (s *Server) ServingDigest(ctx context.Context, name string) (string, error) {
	answer, err := s.Ask(ctx, http.MethodGet, s.Management+"/admin/models", nil)
	if err != nil {
		return "", err
	}
	var got modelList
	if err := json.Unmarshal(answer.Body, &got); err != nil || answer.Status != http.StatusOK {
		return "", fmt.Errorf("the model list: status %d: %w: %s", answer.Status, err, answer.Body)
	}
	for _, m := range got.Models {
		if m.Name == name && m.Default {
			return m.Digest, nil
		}
	}
	return "", nil
}

// Model is one version of a model, the default one for "". The second result says whether it is there.
func (s *Server) Model(t *testing.T, name, version string) (Model, bool) {
	t.Helper()
	for _, m := range s.Models(t) {
		if m.Name == name && (m.Version == version || version == "" && m.Default) {
			return m, true
		}
	}
	return Model{}, false
}

// Serving says whether the default version of a model serves what has the digest.
func (s *Server) Serving(t *testing.T, name, digest string) bool {
	t.Helper()
	m, ok := s.Model(t, name, "")
	return ok && m.Digest == digest && m.State == "serving" && m.Updating == nil
}

// RequireServing waits until it does.
func (s *Server) RequireServing(t *testing.T, name, digest string) {
	t.Helper()
	if !Eventually(startLimit, func() bool { return s.Serving(t, name, digest) }) {
		m, _ := s.Model(t, name, "")
		t.Fatalf("%s with %s does not serve: %+v, events %s", name, digest, m, Lines(s.Events(t, "")))
	}
}

// Events are all events, the oldest first (without the very first one, when there are more than a page); query narrows them: "model=m&kind=swapped".
func (s *Server) Events(t *testing.T, query string) []Event {
	t.Helper()
	page := func(after uint64) []Event {
		var got struct {
			Events []Event `json:"events"`
		}
		s.admin(t, strings.TrimSuffix(fmt.Sprintf("/admin/events?limit=%d&after=%d&%s", eventPage, after, query), "&"), &got)
		return got.Events
	}
	all := page(0) // the newest
	if len(all) < eventPage {
		return all
	}
	all = nil
	for last := uint64(1); ; last = all[len(all)-1].ID {
		events := page(last)
		if len(events) == 0 {
			return all
		}
		if events[0].ID <= last {
			t.Fatalf("events after %d do not come after it: %s", last, Lines(events))
		}
		all = append(all, events...)
	}
}

// eventPage is how many events are asked for at once.
const eventPage = 1000

// History is a model's history, the oldest first.
func (s *Server) History(t *testing.T, model string) []Event {
	t.Helper()
	var got struct {
		History []Event `json:"history"`
	}
	s.admin(t, "/admin/models/"+model+"/history?limit=1000", &got)
	return got.History
}

// InStore gives what the server says about an entry of the store; an empty one if it says nothing.
func (s *Server) InStore(t *testing.T, path string) StoreEntry {
	t.Helper()
	var got struct {
		Entries []StoreEntry `json:"entries"`
	}
	s.admin(t, "/admin/store", &got)
	for _, e := range got.Entries {
		if e.Path == path {
			return e
		}
	}
	return StoreEntry{}
}

// Kinds counts events by their kinds.
func Kinds(events []Event) map[string]int {
	count := map[string]int{}
	for _, e := range events {
		count[e.Kind]++
	}
	return count
}

// Find gives the first event of one of the kinds about a digest ("" for any).
func Find(events []Event, digest string, kinds ...string) (Event, bool) {
	at := slices.IndexFunc(events, func(e Event) bool { return (digest == "" || e.Digest == digest) && slices.Contains(kinds, e.Kind) })
	if at < 0 {
		return Event{}, false
	}
	return events[at], true
}

// Lines shows events, one in a line.
func Lines(events []Event) string {
	var text strings.Builder
	for _, e := range events {
		fmt.Fprintf(&text, "\n  %d %s %s %s %s gen %d %.15s %s (%s: %s) %s", e.ID, e.At.Format("15:04:05.000"), e.Model, e.Version, e.Kind, e.Generation,
			e.Digest, e.Source, e.Who, e.Why, e.Reason)
	}
	return text.String()
}
