package archive

import (
	"time"

	"github.com/goccy/go-yaml/ast"
)

// The values of Settings.Batching.
const (
	BatchingAdaptive   = "adaptive"
	BatchingTorchServe = "torchserve"
)

// batchSizes takes the preferred sizes of batches.
func (r *settingsReader) batchSizes(e yamlEntry) {
	r.s.PreferredBatchSizes = nil
	seq, ok := e.value.(*ast.SequenceNode)
	if !ok {
		r.warn(e, "a list of integers of at least 1")
		return
	}
	for _, v := range seq.Values {
		n, ok := e.with(v).integer()
		if !ok || n < 1 {
			r.s.PreferredBatchSizes = nil
			r.warn(e, "a list of integers of at least 1")
			return
		}
		r.s.PreferredBatchSizes = append(r.s.PreferredBatchSizes, n)
	}
}

const (
	mostGoal   = 3_600_000 // an hour
	goalWanted = "a mapping with p99_ms, an integer from 1 to 3600000"
)

// goal takes the latency that batches are tuned toward.
func (r *settingsReader) goal(e yamlEntry) {
	r.s.LatencyGoal = 0
	mapping, ok := e.value.(*ast.MappingNode)
	if !ok {
		r.warn(e, goalWanted)
		return
	}
	for _, x := range e.entries(mapping) {
		n, whole := x.integer()
		if x.key != "p99_ms" || !whole || n < 1 || n > mostGoal {
			ok = false
			continue
		}
		r.s.LatencyGoal = time.Duration(n) * time.Millisecond
	}
	if !ok {
		r.s.LatencyGoal = 0
	}
	if r.s.LatencyGoal == 0 {
		r.warn(e, goalWanted)
	}
}
