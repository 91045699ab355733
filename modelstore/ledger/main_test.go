package ledger

import (
	"fmt"
	"log/slog"
	"os"
	"strconv"
	"sync"
	"testing"

	"go.uber.org/goleak"

	"github.com/flambeau-serve/flambeau/internal/reexec"
)

func TestMain(m *testing.M) {
	reexec.Main(map[reexec.Mode]func(){writerMode: runWriter})
	goleak.VerifyTestMain(m)
}

const writerMode reexec.Mode = "ledger-writer"

// runWriter adds records and changes the state as fast as it can, and says on stdout what it has seen done, until it is killed.
func runWriter() {
	l, err := Open(Options{Dir: os.Args[1], Logger: slog.New(slog.DiscardHandler), MaxEvents: 200})
	if err != nil {
		panic(err)
	}
	for {
		r := l.Add(Record{Model: "m", Version: "1.0", Kind: "swapped", Reason: "some text that takes its place on the disk, \" and \\ and é too"})
		l.Events(Filter{Limit: 1}) // what it tells is to survive
		fmt.Printf("id %d\n", r.ID)
		var n int
		if err := l.Change(func(s *State) {
			n = s.Scaled["m/1.0"].Min + 1
			s.Scaled["m/1.0"] = Scale{Min: n, Max: n}
			s.Kept = append(s.Kept, Kept{Model: "m", Digest: strconv.Itoa(n)})
			if len(s.Kept) > 50 {
				s.Kept = s.Kept[1:]
			}
		}); err != nil {
			panic(err)
		}
		fmt.Printf("state %d\n", n)
	}
}

// lines gathers what a ledger logs.
type lines struct {
	mu   sync.Mutex // guards text
	text string
}

func (l *lines) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.text += string(p)
	return len(p), nil
}

func (l *lines) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text
}

func (l *lines) logger() *slog.Logger { return slog.New(slog.NewTextHandler(l, nil)) }

// open opens a ledger that the test's end closes.
func open(t *testing.T, opts Options) *Ledger {
	t.Helper()
	if opts.Logger == nil {
		opts.Logger = slog.New(slog.DiscardHandler)
	}
	l, err := Open(opts)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := l.Close(); err != nil {
			t.Errorf("close: %v", err)
		}
	})
	return l
}

func shut(t *testing.T, l *Ledger) {
	t.Helper()
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
}
