package httpapi

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"net"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/flambeau-serve/flambeau/internal/fault"
	"github.com/flambeau-serve/flambeau/internal/infer"
	"github.com/flambeau-serve/flambeau/internal/malformed"
	"github.com/flambeau-serve/flambeau/modelstore/rollout"
)

// Admin is what the routes below /admin need, which TorchServe does not have. They belong to the management API and its key. A nil member is
// something that the server does not do: its routes answer 404 and say so.
type Admin struct {
	Latency Latency // nil: no latencies are told
	Refused Refused // nil: what was refused is not told
	Traffic TrafficControl
	Journal Journal
	Store   ModelStore
	Drain   Drain

	Requests Requests
	Poison   Poison
	Tuning   TuningControl
	Crashes  Crashes
}

// Latency tells how long requests took lately.
type Latency interface {
	// Latency gives the median, the 99th percentile, and of how many answers they are.
	Latency(ref infer.ModelRef) (p50, p99 time.Duration, n int)
}

// TrafficControl sets how requests find the versions of a model.
type TrafficControl interface {
	Traffic(name string) (rollout.Traffic, error)
	SetTraffic(ctx context.Context, name string, t rollout.Traffic) error
}

// Journal tells what happened. Both give the oldest first.
type Journal interface {
	Events(f EventFilter) []Event
	// History gives the newest events that changed what serves, at most limit of them.
	History(model string, limit int) []Event
}

// ModelStore is the watched model store.
type ModelStore interface {
	Entries() []StoreEntry
	// Reload looks at a model's files again, also at those that failed before, and returns when they serve, or with the reason why not.
	Reload(ctx context.Context, model string) error
	// Rollback makes an earlier archive of a version serve: the one whose digest begins with to, the one before for "". An empty version is the default
	// one. It returns when the archive serves.
	Rollback(ctx context.Context, model, version, to string) (RolledBack, error)
}

// EventFilter says which events are wanted. Empty fields do not filter.
type EventFilter struct {
	Model, Version, Kind string
	After                uint64 // only later ones than the event of this ID: the first Limit of them; 0: the newest Limit of all
	Limit                int
}

// Event is something that happened to a model version.
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
	TookMS     float64   `json:"took_ms"`
	Steps      []Step    `json:"steps"`
}

// Step is a part of a load.
type Step struct {
	Name   string  `json:"name"`
	TookMS float64 `json:"took_ms"`
}

// StoreEntry is an archive in the model store, and what was made of it.
type StoreEntry struct {
	Path     string    `json:"path"`
	Kind     string    `json:"kind"`
	State    string    `json:"state"` // settled, changing, incomplete
	Reason   string    `json:"reason"`
	Since    time.Time `json:"since"`
	Bytes    int64     `json:"bytes"`
	Model    string    `json:"model"`
	Version  string    `json:"version"`
	Digest   string    `json:"digest"`
	Serving  string    `json:"serving"`  // the digest of what runs from it, "" for nothing
	Decision string    `json:"decision"` // a word: what is, or will be, done about it
	Why      string    `json:"why"`
	Decided  time.Time `json:"decided"`
	Attempts int       `json:"attempts"` // how often this archive failed
	// NextTry is when it is tried again; null: not before it changes.
	NextTry  *time.Time `json:"next_try"`
	Findings string     `json:"findings"` // of the check of its content, "" when all is well
}

// RolledBack says what serves after a rollback.
type RolledBack struct {
	Model   string `json:"model"`
	Version string `json:"version"`
	Digest  string `json:"digest"`
	Source  string `json:"source"`

	FromVersion string `json:"from_version"`
	FromDigest  string `json:"from_digest"`
}

// adminModel is a model version as GET /admin/models has it.
type adminModel struct {
	Name        string        `json:"name"`
	Version     string        `json:"version"`
	Default     bool          `json:"default"`
	State       string        `json:"state"`
	Workers     adminWorkers  `json:"workers"`
	Queue       adminQueue    `json:"queue"`
	BatchSize   int           `json:"batch_size"`
	P50         *float64      `json:"p50_ms"` // null without an answer lately
	P99         *float64      `json:"p99_ms"`
	Memory      int64         `json:"memory_bytes"`
	Since       *time.Time    `json:"since"` // null before it serves
	Reason      string        `json:"reason"`
	Generation  int           `json:"generation"`
	Digest      string        `json:"digest"`
	Source      string        `json:"source"`
	Swap        string        `json:"swap"`
	Labels      []string      `json:"labels"`
	Weight      float64       `json:"weight"`
	Updating    *adminUpdate  `json:"updating"`
	LastFailure *adminFailure `json:"last_failure"`
	Refused     *adminRefused `json:"refused"` // null without one lately
	Steps       []Step        `json:"steps"`
}

type adminWorkers struct {
	Ready int `json:"ready"`
	Total int `json:"total"`
}

type adminQueue struct {
	Waiting int `json:"waiting"`
	Limit   int `json:"limit"`
}

type adminUpdate struct {
	Generation int       `json:"generation"`
	Digest     string    `json:"digest"`
	Since      time.Time `json:"since"`
	State      string    `json:"state"`
}

type adminFailure struct {
	At       time.Time `json:"at"`
	Digest   string    `json:"digest"`
	Reason   string    `json:"reason"`
	Attempts int       `json:"attempts"`
}

const (
	fewEvents  = 100  // that are told when nobody says how many
	mostEvents = 1000 // that are told at once
)

// isAdmin says whether a path is below /admin, whatever becomes of it there.
func isAdmin(segments []string) bool { return len(segments) > 1 && segments[1] == "admin" }

// admin serves the routes that TorchServe does not have.
func (a *API) admin(q *request) (answer, bool, error) {
	if !isAdmin(q.segments) || a.opts.Admin == nil {
		return answer{}, false, nil
	}
	params, err := queryOf(q.head.Target)
	if err != nil {
		return answer{}, true, err
	}
	for i := range a.adminTable {
		r := &a.adminTable[i]
		if !matches(r.segments, q.segments) {
			continue
		}
		if !r.has(q.head.Method) {
			return answer{}, true, methodNotAllowed()
		}
		ans, err := r.serve(q, params)
		return ans, true, err
	}
	return answer{}, true, notFound()
}

// known refuses parameters that a route does not have, so that a misspelled one is not taken for none.
func known(params []pair, names ...string) error {
	for i, p := range params {
		if !slices.Contains(names, p.name) {
			f := fault.Newf(fault.BadRequest, "Parameter %s is not known here.", p.name)
			if f.Hint = "this route has no parameters"; len(names) > 0 {
				f.Hint = "this route has " + strings.Join(names, ", ")
			}
			return f
		}
		if slices.ContainsFunc(params[:i], func(o pair) bool { return o.name == p.name }) {
			return fault.Newf(fault.BadRequest, "Parameter %s is given twice.", p.name)
		}
	}
	return nil
}

// number reads a parameter from 0 up; a missing one is standard.
func number(params []pair, name string, standard uint64) (uint64, error) {
	text, ok := param(params, name)
	if !ok {
		return standard, nil
	}
	n, err := strconv.ParseUint(text, 10, 63)
	if err != nil {
		return 0, fault.Newf(fault.BadRequest, "Parameter %s is %q: it has to be a whole number, 0 or more.", name, text)
	}
	return n, nil
}

// limitOf reads the parameter limit.
func limitOf(params []pair) (int, error) {
	n, err := number(params, "limit", fewEvents)
	if err == nil && (n < 1 || n > mostEvents) {
		return 0, fault.Newf(fault.BadRequest, "Parameter limit is %d: it can be from 1 to %d.", n, mostEvents)
	}
	return int(n), err
}

// absent refuses what the server does not do.
func absent(what string) error {
	return &fault.Error{Kind: fault.RouteNotFound, Message: notFoundMessage, Hint: what}
}

func noJournal() error { return absent("this server keeps no events") }

func noStore() error { return absent("this server does not watch its model store") }

// exists says why there is no such model.
func (a *API) exists(model string) error {
	_, err := a.opts.Models.Describe(infer.ModelRef{Name: model})
	return err //nolint:wrapcheck // the model store's words are the client's
}

// adminModels serves GET /admin/models: all the versions of all the models.
func (a *API) adminModels(params []pair) (answer, error) {
	if err := known(params); err != nil {
		return answer{}, err
	}
	views := []adminModel{}
	for _, m := range a.opts.Models.List() {
		all, err := a.opts.Models.DescribeAll(m.Name)
		if fault.Is(err, fault.ModelNotFound) {
			continue // unregistered in this moment
		}
		if err != nil {
			return answer{}, err //nolint:wrapcheck // the model store's words are the client's
		}
		for i := range all {
			views = append(views, a.adminView(&all[i]))
		}
	}
	return marshal(struct {
		Models []adminModel `json:"models"`
	}{views})
}

func (a *API) adminView(d *rollout.Description) adminModel {
	v := adminModel{
		Name: d.Ref.Name, Version: d.Ref.Version, Default: d.Default, State: d.State, Workers: adminWorkers{Total: len(d.Workers)},
		Queue: adminQueue{Limit: d.QueueSize}, BatchSize: d.BatchSize, Reason: d.Reason, Generation: d.Generation, Digest: d.Digest, Source: d.Source,
		Swap: d.Swap, Labels: append([]string{}, d.Labels...), Weight: d.Weight, Steps: stepsOf(d.Steps), Since: momentOf(d.Since),
		Updating: updateOf(d.Updating), LastFailure: failureOf(d.LastFailure), Refused: a.refusedOf(d.Ref),
	}
	for _, w := range d.Workers {
		v.Memory += w.Memory
		if w.Ready {
			v.Workers.Ready++
		}
	}
	if waiting, capacity, err := a.opts.Predictor.Queue(d.Ref); err == nil {
		v.Queue = adminQueue{Waiting: waiting, Limit: capacity}
	}
	if a.opts.Admin.Latency != nil {
		if p50, p99, n := a.opts.Admin.Latency.Latency(d.Ref); n > 0 {
			v.P50, v.P99 = new(milliseconds(p50)), new(milliseconds(p99))
		}
	}
	return v
}

func stepsOf(steps []rollout.Step) []Step {
	all := make([]Step, 0, len(steps))
	for _, s := range steps {
		all = append(all, Step{Name: s.Name, TookMS: milliseconds(s.Took)})
	}
	return all
}

// momentOf is a time, nil for none.
func momentOf(t time.Time) *time.Time {
	if t.IsZero() {
		return nil
	}
	return new(t.UTC())
}

func updateOf(u *rollout.Update) *adminUpdate {
	if u == nil {
		return nil
	}
	return &adminUpdate{Generation: u.Generation, Digest: u.Digest, Since: u.Since.UTC(), State: u.State}
}

func failureOf(f *rollout.Failure) *adminFailure {
	if f == nil {
		return nil
	}
	return &adminFailure{At: f.At.UTC(), Digest: f.Digest, Reason: f.Reason, Attempts: f.Attempts}
}

func milliseconds(d time.Duration) float64 { return float64(d.Microseconds()) / 1e3 }

// adminEvents serves GET /admin/events.
func (a *API) adminEvents(params []pair) (answer, error) {
	if a.opts.Admin.Journal == nil {
		return answer{}, noJournal()
	}
	err := known(params, "model", "version", "kind", "after", "limit")
	if err != nil {
		return answer{}, err
	}
	var f EventFilter
	if f.Limit, err = limitOf(params); err != nil {
		return answer{}, err
	}
	if f.After, err = number(params, "after", 0); err != nil {
		return answer{}, err
	}
	f.Model, _ = param(params, "model")
	f.Version, _ = param(params, "version")
	f.Kind, _ = param(params, "kind")
	return marshal(struct {
		Events []Event `json:"events"`
	}{listed(a.opts.Admin.Journal.Events(f))})
}

// adminHistory serves GET /admin/models/M/history, also of a model that is gone.
func (a *API) adminHistory(model string, params []pair) (answer, error) {
	if a.opts.Admin.Journal == nil {
		return answer{}, noJournal()
	}
	if err := known(params, "limit"); err != nil {
		return answer{}, err
	}
	limit, err := limitOf(params)
	if err != nil {
		return answer{}, err
	}
	events := a.opts.Admin.Journal.History(model, limit)
	if len(events) == 0 {
		if err := a.exists(model); err != nil {
			return answer{}, err
		}
	}
	return marshal(struct {
		History []Event `json:"history"`
	}{listed(events)})
}

// listed makes a list of no events, and of events without steps, one that is no null.
func listed(events []Event) []Event {
	all := make([]Event, 0, len(events))
	for _, e := range events {
		if e.Steps == nil {
			e.Steps = []Step{}
		}
		all = append(all, e)
	}
	return all
}

// adminStore serves GET /admin/store.
func (a *API) adminStore(params []pair) (answer, error) {
	if a.opts.Admin.Store == nil {
		return answer{}, noStore()
	}
	if err := known(params); err != nil {
		return answer{}, err
	}
	entries := a.opts.Admin.Store.Entries()
	if entries == nil {
		entries = []StoreEntry{}
	}
	return marshal(struct {
		Entries []StoreEntry `json:"entries"`
	}{entries})
}

// adminReload serves POST /admin/models/M/reload.
func (a *API) adminReload(q *request, model string, params []pair) (answer, error) {
	if a.opts.Admin.Store == nil {
		return answer{}, noStore()
	}
	if err := known(params); err != nil {
		return answer{}, err
	}
	ctx, cancel := a.detached(q)
	defer cancel()
	if err := a.opts.Admin.Store.Reload(ctx, model); err != nil {
		return answer{}, err //nolint:wrapcheck // the model store's words are the client's
	}
	return statusAnswer(`Model "` + model + `" serves what is in the model store`), nil
}

// adminRollback serves POST /admin/models/M/rollback.
func (a *API) adminRollback(q *request, model string, params []pair) (answer, error) {
	if a.opts.Admin.Store == nil {
		return answer{}, noStore()
	}
	if err := known(params, "version", "to"); err != nil {
		return answer{}, err
	}
	version, _ := param(params, "version")
	to, _ := param(params, "to")
	ctx, cancel := a.detached(q)
	defer cancel()
	done, err := a.opts.Admin.Store.Rollback(ctx, model, version, to)
	if err != nil {
		return answer{}, err //nolint:wrapcheck // the model store's words are the client's
	}
	return marshal(done)
}

// adminTraffic serves /admin/models/M/traffic. PUT replaces all of it and gives what is set then.
func (a *API) adminTraffic(q *request, model string, params []pair) (answer, error) {
	control := a.opts.Admin.Traffic
	if control == nil {
		return answer{}, absent("this server does not spread traffic")
	}
	if err := known(params); err != nil {
		return answer{}, err
	}
	if q.head.Method == http.MethodPut {
		wanted, err := trafficJSON(q.body)
		if err != nil {
			return answer{}, err
		}
		ctx, cancel := a.detached(q)
		defer cancel()
		if err := control.SetTraffic(ctx, model, wanted); err != nil {
			return answer{}, err //nolint:wrapcheck // the model store's words are the client's
		}
	}
	set, err := control.Traffic(model)
	if err != nil {
		return answer{}, err //nolint:wrapcheck // the model store's words are the client's
	}
	return marshal(set)
}

// trafficJSON reads one object without unknown members.
func trafficJSON(body []byte) (rollout.Traffic, error) {
	d := json.NewDecoder(bytes.NewReader(body))
	d.DisallowUnknownFields()
	var t *rollout.Traffic
	err := d.Decode(&t)
	if err != nil {
		err = errors.New(malformed.JSON(err))
	}
	if err == nil && t == nil {
		err = errors.New("it is null")
	}
	if err == nil {
		if _, more := d.Token(); !errors.Is(more, io.EOF) {
			err = errors.New("something follows the object")
		}
	}
	if err != nil {
		f := fault.Newf(fault.BadRequest, "The body is no traffic that can be set: %v.", err)
		f.Hint = `send a JSON object like {"labels": {"canary": "2.0"}, "weights": {"canary": 10}, "header": "x-version", "sticky": "cookie:uid"}; {} clears all`
		return rollout.Traffic{}, f
	}
	return *t, nil
}

// cliAgent begins the User-Agent of the flambeau command.
const cliAgent = "flambeau-cli/"

// actorOf says who sent a request.
func actorOf(q *request) rollout.Actor {
	who := "api"
	if strings.HasPrefix(q.head.Get("User-Agent"), cliAgent) {
		who = "cli"
	}
	if host, _, err := net.SplitHostPort(q.http.RemoteAddr); err == nil {
		who += " (" + host + ")"
	}
	return rollout.Actor{Who: who}
}
