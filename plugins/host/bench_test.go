package host_test

import (
	"context"
	"os"
	"strconv"
	"testing"

	"github.com/flambeau-serve/flambeau/internal/infer"
	"github.com/flambeau-serve/flambeau/internal/reexec"
	"github.com/flambeau-serve/flambeau/plugins/backend"
	"github.com/flambeau-serve/flambeau/plugins/host"
)

// Round trips through a process, for comparison before and after a change.
func BenchmarkPredict(b *testing.B) {
	dir, err := os.MkdirTemp("", "fl") //nolint:usetesting // short, for the socket
	if err != nil {
		b.Fatal(err)
	}
	defer func() { _ = os.RemoveAll(dir) }()
	l, err := host.New(host.Options{
		SocketDir: dir, MaxMessageBytes: maxMessage,
		Limits: backend.Limits{Start: longLimit, Load: longLimit, Stop: longLimit},
	})
	if err != nil {
		b.Fatal(err)
	}
	for name, spec := range map[string]backend.ProcessSpec{"go": reexec.Spec(reexec.Echo), "python": pythonSpec(b)} {
		inst, err := l.Launch(b.Context(), spec)
		if err != nil {
			b.Fatal(err)
		}
		if _, err := inst.Load(b.Context(), backend.LoadSpec{GPU: backend.NoGPU}); err != nil {
			b.Fatal(err)
		}
		for _, size := range []int{16, 602_112, 10 << 20} {
			items := []infer.Item{{ID: "1", Parts: []infer.Part{{Data: make([]byte, size)}}}}
			predict := func(b *testing.B) {
				b.Helper()
				if _, err := inst.Predict(b.Context(), items); err != nil {
					b.Fatal(err)
				}
			}
			b.Run(name+"/"+strconv.Itoa(size), func(b *testing.B) {
				b.SetBytes(int64(size))
				for b.Loop() {
					predict(b)
				}
			})
			b.Run(name+"/"+strconv.Itoa(size)+"/8", func(b *testing.B) {
				b.SetBytes(int64(size))
				b.SetParallelism(4) // times GOMAXPROCS
				b.RunParallel(func(pb *testing.PB) {
					for pb.Next() {
						predict(b)
					}
				})
			})
		}
	}
	if err := l.Close(context.Background()); err != nil {
		b.Error(err)
	}
}
