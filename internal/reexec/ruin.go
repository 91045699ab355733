package reexec

import (
	"os"
	"runtime"
	"runtime/debug"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/flambeau-serve/flambeau/handlersdk"
)

// ruin does to the process what a mode says.
func ruin(mode Mode, results []handlersdk.Result) error {
	switch mode { //nolint:exhaustive // the others do no harm
	case Poison:
		for i := range results {
			if string(results[i].Body) == "poison" {
				abort()
			}
		}
	case Bomb:
		const piece = 4 << 20
		var all [][]byte
		for {
			all = append(all, make([]byte, piece))
			for i := 0; i < piece; i += os.Getpagesize() {
				all[len(all)-1][i] = 1 // else it is promised only
			}
		}
	case Burn:
		d, err := time.ParseDuration(string(results[0].Body))
		if err != nil {
			return err
		}
		burn(d)
	}
	return nil
}

// abort ends the process by SIGABRT, as C's abort does.
func abort() {
	_, _ = os.Stdout.WriteString("to stdout before the end\n")
	_ = syscall.Setrlimit(syscall.RLIMIT_CORE, &syscall.Rlimit{}) // no core file
	debug.SetTraceback("crash")
	go panic("abort") // not of the handler's goroutine, which recovers
	select {}
}

// burn uses all processors.
func burn(d time.Duration) {
	end := time.Now().Add(d)
	var all sync.WaitGroup
	for range 2 * runtime.NumCPU() {
		all.Go(func() {
			for time.Now().Before(end) {
				_ = strings.Repeat("x", 1<<10)
			}
		})
	}
	all.Wait()
}
