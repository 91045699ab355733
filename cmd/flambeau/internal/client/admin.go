package client

import "time"

// Model is a version in GET /admin/models.
type Model struct {
	Name    string `json:"name"`
	Version string `json:"version"`
	Default bool   `json:"default"`
	State   string `json:"state"`
	Workers struct {
		Ready int `json:"ready"`
		Total int `json:"total"`
	} `json:"workers"`
	Queue struct {
		Waiting int `json:"waiting"`
		Limit   int `json:"limit"`
	} `json:"queue"`
	BatchSize   int       `json:"batch_size"`
	P99         *float64  `json:"p99_ms"` // nil without an answer lately
	Memory      int64     `json:"memory_bytes"`
	Since       time.Time `json:"since"` // zero before it serves
	Reason      string    `json:"reason"`
	Generation  int       `json:"generation"`
	Digest      string    `json:"digest"`
	Source      string    `json:"source"`
	Updating    *Update   `json:"updating"`
	LastFailure *Failure  `json:"last_failure"`
	Refused     *Refused  `json:"refused"` // nil without one lately
}

// Refused is what a version has refused in the last minutes.
type Refused struct {
	Reason string    `json:"reason"` // of the last one
	At     time.Time `json:"at"`
	Count  int64     `json:"count"`
}

// Update is a load that is to replace what serves.
type Update struct {
	Generation int       `json:"generation"`
	Digest     string    `json:"digest"`
	Since      time.Time `json:"since"`
	State      string    `json:"state"`
}

// Failure is how the last update failed.
type Failure struct {
	At       time.Time `json:"at"`
	Digest   string    `json:"digest"`
	Reason   string    `json:"reason"`
	Attempts int       `json:"attempts"`
}

// Event is one of GET /admin/events, and of a model's history.
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
}

// StoreEntry is one of GET /admin/store.
type StoreEntry struct {
	Path     string    `json:"path"`
	Kind     string    `json:"kind"`
	State    string    `json:"state"`
	Reason   string    `json:"reason"`
	Since    time.Time `json:"since"`
	Bytes    int64     `json:"bytes"`
	Model    string    `json:"model"`
	Version  string    `json:"version"`
	Digest   string    `json:"digest"`
	Decision string    `json:"decision"`
	Why      string    `json:"why"`
}

// Traffic is what /admin/models/M/traffic gives and takes.
type Traffic struct {
	Labels  map[string]string  `json:"labels"`
	Weights map[string]float64 `json:"weights"`
	Header  string             `json:"header,omitempty"`
	Sticky  string             `json:"sticky,omitempty"`
}

// RolledBack is the answer to a rollback.
type RolledBack struct {
	Model   string `json:"model"`
	Version string `json:"version"`
	Digest  string `json:"digest"`
	Source  string `json:"source"`
}

// Request is one of GET /admin/models/M/slow and GET /admin/requests/ID.
type Request struct {
	ID         string    `json:"id"`
	Model      string    `json:"model"`
	Version    string    `json:"version"`
	Arrived    time.Time `json:"arrived"`
	TotalMS    float64   `json:"total_ms"`
	WaitedMS   float64   `json:"waited_ms"`
	GatheredMS float64   `json:"gathered_ms"`
	RanMS      float64   `json:"ran_ms"`
	Batch      *Batch    `json:"batch"`
	Behind     *Batch    `json:"behind"`
	BytesIn    int64     `json:"bytes_in"`
	BytesOut   int64     `json:"bytes_out"`
	Status     int       `json:"status"`
	Reason     string    `json:"reason"`
	Why        string    `json:"why"`
}

// Batch is the run of a batch.
type Batch struct {
	Number   uint64    `json:"number"`
	Requests []string  `json:"requests"`
	Rows     int       `json:"rows"`
	Worker   int       `json:"worker"`
	PID      int       `json:"pid"`
	Begun    time.Time `json:"begun"`
	RanMS    float64   `json:"ran_ms"`
}

// Poisoned is one of GET /admin/models/M/poison.
type Poisoned struct {
	Version string    `json:"version"`
	Digest  string    `json:"digest"`
	Bytes   int64     `json:"bytes"`
	Deaths  int       `json:"deaths"`
	Last    time.Time `json:"last"`
	Until   time.Time `json:"until"`
	How     string    `json:"how"`
	ID      string    `json:"id"`
	Refused bool      `json:"refused"`
}
