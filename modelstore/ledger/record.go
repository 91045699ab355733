package ledger

import (
	"encoding/json"
	"slices"
	"strings"
	"time"
	"unicode/utf8"
)

// Record is something that happened to a model version, or that was refused.
type Record struct {
	ID         uint64 // grows with each record, across restarts too, with gaps
	At         time.Time
	Model      string
	Version    string
	Kind       string // a word of rollout.ChangeKind
	Generation int    // which load of the version it is about, counted from 1; 0 for none
	Digest     string // of the archive, "" when not known
	Source     string // where the archive is: a path in the store, or a URL
	Who        string // who asked for it
	Why        string // and why; "" when nobody said
	Reason     string // why it failed or was refused, or what exactly was changed
	Took       time.Duration
	Steps      []Step
}

// Step is a part of a load.
type Step struct {
	Name string
	Took time.Duration
}

// wireRecord is a record as JSON has it; times are in milliseconds.
type wireRecord struct {
	ID         uint64     `json:"id"`
	At         time.Time  `json:"at"`
	Model      string     `json:"model"`
	Version    string     `json:"version"`
	Kind       string     `json:"kind"`
	Generation int        `json:"generation,omitempty"`
	Digest     string     `json:"digest,omitempty"`
	Source     string     `json:"source,omitempty"`
	Who        string     `json:"who,omitempty"`
	Why        string     `json:"why,omitempty"`
	Reason     string     `json:"reason,omitempty"`
	TookMS     float64    `json:"took_ms,omitempty"`
	Steps      []wireStep `json:"steps,omitempty"`
}

type wireStep struct {
	Name   string  `json:"name"`
	TookMS float64 `json:"took_ms"`
}

// MarshalJSON writes the record with names in snake case, and durations as took_ms.
func (r Record) MarshalJSON() ([]byte, error) {
	w := wireRecord{
		ID: r.ID, At: r.At, Model: r.Model, Version: r.Version, Kind: r.Kind, Generation: r.Generation, Digest: r.Digest, Source: r.Source,
		Who: r.Who, Why: r.Why, Reason: r.Reason, TookMS: milliseconds(r.Took),
	}
	for _, s := range r.Steps {
		w.Steps = append(w.Steps, wireStep{s.Name, milliseconds(s.Took)})
	}
	return json.Marshal(w)
}

// UnmarshalJSON reads what MarshalJSON writes.
func (r *Record) UnmarshalJSON(data []byte) error {
	var w wireRecord
	if err := json.Unmarshal(data, &w); err != nil {
		return err
	}
	*r = Record{
		ID: w.ID, At: w.At, Model: w.Model, Version: w.Version, Kind: w.Kind, Generation: w.Generation, Digest: w.Digest, Source: w.Source,
		Who: w.Who, Why: w.Why, Reason: w.Reason, Took: duration(w.TookMS),
	}
	for _, s := range w.Steps {
		r.Steps = append(r.Steps, Step{s.Name, duration(s.TookMS)})
	}
	return nil
}

func milliseconds(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }

// duration reads milliseconds; what no duration can hold is 0.
func duration(ms float64) time.Duration {
	const most = float64(1 << 52) // microseconds: some 142 years
	us := ms * 1000
	if !(us > -most && us < most) { // not a number is neither
		return 0
	}
	return time.Duration(us+0.5) * time.Microsecond
}

// Bounds of one record, so that the files are bounded.
const (
	mostName   = 1 << 10
	mostReason = 8 << 10
	mostSteps  = 32
)

// bounded cuts what is too long, and makes the texts valid UTF-8.
func (r Record) bounded() Record {
	for _, s := range []*string{&r.Model, &r.Version, &r.Kind, &r.Digest, &r.Source, &r.Who} {
		*s = cut(*s, mostName)
	}
	r.Why, r.Reason = cut(r.Why, mostReason), cut(r.Reason, mostReason)
	r.Steps = slices.Clone(r.Steps[:min(len(r.Steps), mostSteps)])
	for i := range r.Steps {
		r.Steps[i].Name = cut(r.Steps[i].Name, mostName)
	}
	r.At = r.At.UTC().Round(time.Millisecond)
	return r
}

func cut(s string, most int) string {
	const sign = "…"
	if len(s) <= most && utf8.ValidString(s) {
		return s
	}
	s = strings.ToValidUTF8(s, "\ufffd")
	if len(s) <= most {
		return s
	}
	end := most - len(sign)
	for !utf8.RuneStart(s[end]) {
		end--
	}
	return s[:end] + sign
}

// changesServing says whether a record belongs to a model's history: what changed what serves, or was to. Workers that come and go with the load do not.
func changesServing(r *Record) bool {
	if r.Who == "autoscale" {
		return false
	}
	switch r.Kind {
	case "registered", "swapped", "swap_failed", "unregistered", "default", "traffic", "scaled", "rolled_back", "refused":
		return true
	}
	return false
}

// Filter says which records are wanted. Empty fields do not filter.
type Filter struct {
	Model, Version, Kind string
	// After gives only records with a greater ID: the first Limit of them. With 0 it is the newest Limit.
	After uint64
	Limit int // 0: all that are kept
}

func (f Filter) wants(r *Record) bool {
	return r.ID > f.After && (f.Model == "" || r.Model == f.Model) && (f.Version == "" || r.Version == f.Version) && (f.Kind == "" || r.Kind == f.Kind)
}

// pick gives what the filter wants of records in the order of their IDs, in the same order.
func (f Filter) pick(records []Record) []Record {
	var found []Record
	if f.After > 0 {
		for i := range records {
			if f.wants(&records[i]) {
				found = append(found, records[i])
				if len(found) == f.Limit {
					break
				}
			}
		}
		return found
	}
	for i := len(records) - 1; i >= 0 && (f.Limit <= 0 || len(found) < f.Limit); i-- {
		if f.wants(&records[i]) {
			found = append(found, records[i])
		}
	}
	slices.Reverse(found)
	return found
}
