package client

import "time"

// Description is what a server says about a version: TorchServe's keys, and those of Flambeau that may be absent.
type Description struct {
	Name          string   `json:"modelName"`
	Version       string   `json:"modelVersion"`
	URL           string   `json:"modelUrl"`
	Runtime       string   `json:"runtime"`
	MinWorkers    int      `json:"minWorkers"`
	MaxWorkers    int      `json:"maxWorkers"`
	BatchSize     int      `json:"batchSize"`
	MaxBatchDelay int      `json:"maxBatchDelay"`
	AtStartup     bool     `json:"loadedAtStartup"`
	Default       *bool    `json:"default"`
	State         string   `json:"state"`
	Reason        string   `json:"reason"`
	Workers       []Worker `json:"workers"`
	Generation    int      `json:"generation"`
	Digest        string   `json:"digest"`
	Source        string   `json:"source"`
	// Since is when the generation began to serve; zero before it, and when the server does not say.
	Since       time.Time `json:"since"`
	Swap        string    `json:"swap"`
	Labels      []string  `json:"labels"`
	Weight      float64   `json:"weight"` // percent
	Updating    *Update   `json:"updating"`
	LastFailure *Failure  `json:"lastFailure"`
	Refused     *Refused  `json:"refused"` // nil without one lately
	Steps       []Step    `json:"steps"`
	Queue       struct {
		Remaining int `json:"remainingCapacity"`
		Pending   int `json:"pendingRequests"`
	} `json:"jobQueueStatus"`
}

// Step is a part of a load.
type Step struct {
	Name   string  `json:"name"`
	TookMS float64 `json:"tookMs"`
}

// Worker is one worker of a version.
type Worker struct {
	ID       string `json:"id"`
	Started  string `json:"startTime"`
	Status   string `json:"status"` // READY or UNLOADING
	Memory   int64  `json:"memoryUsage"`
	PID      int    `json:"pid"`
	GPU      bool   `json:"gpu"`
	GPUUsage string `json:"gpuUsage"`
	State    string `json:"state"`
	Reason   string `json:"reason"`
	Restarts int    `json:"restarts"`
}

// Ready is how many workers are ready.
func (d *Description) Ready() int {
	n := 0
	for _, w := range d.Workers {
		if w.Status == "READY" {
			n++
		}
	}
	return n
}

// Summary is the version's state in a word, also of a server that does not say it.
func (d *Description) Summary() string {
	switch ready := d.Ready(); {
	case d.State != "":
		return d.State
	case len(d.Workers) == 0:
		return "idle"
	case ready == len(d.Workers):
		return "serving"
	case ready > 0:
		return "degraded"
	default:
		return "loading"
	}
}

// Memory is the sum of the workers'.
func (d *Description) Memory() int64 {
	var n int64
	for _, w := range d.Workers {
		n += w.Memory
	}
	return n
}
