package archive

import (
	"math"
	"time"

	"github.com/goccy/go-yaml/ast"
)

// Recycle says when a worker is replaced although nothing is wrong with it: once it has answered so many requests, or once so much memory is resident.
// Zero values are no limits.
type Recycle struct {
	Requests  int64
	MemoryMiB int64
}

// keepAlive takes how long the last worker stays without a request, where the model may have none (minWorkers: 0).
func (r *settingsReader) keepAlive(e yamlEntry) {
	r.count(e, 1, func(n int) { r.s.KeepAlive = time.Duration(n) * time.Second })
}

// minWorkers takes the least number of workers. TorchServe makes 1 of 0; with a keepAlive 0 means what it says.
func (r *settingsReader) minWorkers(e yamlEntry) {
	r.count(e, math.MinInt32, func(n int) {
		r.s.MinWorkers = new(max(1, n))
		r.zero = n == 0
	})
}

func (r *settingsReader) recycle(e yamlEntry) {
	mapping, ok := e.value.(*ast.MappingNode)
	if !ok {
		r.warn(e, "a map with requests or memoryMb")
		return
	}
	r.s.Recycle = Recycle{}
	for _, sub := range e.entries(mapping) {
		switch sub.key {
		case "requests":
			r.count(sub, 1, func(n int) { r.s.Recycle.Requests = int64(n) })
		case "memoryMb":
			r.count(sub, 1, func(n int) { r.s.Recycle.MemoryMiB = int64(n) })
		default:
			r.warn(sub, "requests or memoryMb")
		}
	}
}
