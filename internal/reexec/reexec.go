// Package reexec makes a test binary start itself as a backend process that behaves as a test needs it.
package reexec

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"syscall"
	"time"

	"github.com/flambeau-serve/flambeau/handlersdk"
	"github.com/flambeau-serve/flambeau/plugins/backend"
)

// Mode is a behaviour of a backend process.
type Mode string

// The behaviours. Those that load answer each item with the data of its first part and its headers, if nothing else is said.
const (
	Echo        Mode = "echo"
	LoadFails   Mode = "load-fails"    // refuses to load
	SlowLoad    Mode = "slow-load"     // never gets done with loading
	SlowStart   Mode = "slow-start"    // waits before its handshake for as long as its first argument says
	NoHandshake Mode = "no-handshake"  // never does its handshake
	DeadSocket  Mode = "dead-socket"   // does its handshake and does not serve
	StdoutNoise Mode = "stdout-noise"  // prints before its handshake
	ExitAtStart Mode = "exit-at-start" // exits with 3 before its handshake
	Wedge       Mode = "wedge"         // never answers a batch
	Crash       Mode = "crash"         // exits with 3 when it gets a batch
	Exit137     Mode = "exit137"       // exits with 137 when it gets a batch
	Fork        Mode = "fork"          // has a child that holds its outputs and sleeps, and prints "child N" with its number
	Panic       Mode = "panic"         // panics when it gets a batch
	Big         Mode = "big"           // answers with as many bytes as the item's number says
	Short       Mode = "short"         // answers all items but the first
	ExitInLoad  Mode = "exit-in-load"  // exits with 4 when it is to load
	Malformed   Mode = "malformed"     // answers a batch with bytes that are no frame
	Miscount    Mode = "miscount"      // answers a batch with a frame of no results
	Older       Mode = "older"         // answers Load as the first version of the protocol did, and batches with the number of items
	Later       Mode = "later"         // the same, with fields, features and frames of a version that is yet to come
	OtherOne    Mode = "other-version" // does its handshake for another version of the protocol
	Poison      Mode = "poison"        // is ended by SIGABRT when a batch has an item of "poison", and else echoes
	Bomb        Mode = "bomb"          // takes all the memory that it gets when it gets a batch
	Burn        Mode = "burn"          // uses all processors for as long as the first item says before it echoes
	Chatty      Mode = "chatty"        // prints a marker and a line to stdout, and a line to stderr

	sleep Mode = "sleep"
)

const envMode = "FLAMBEAU_REEXEC"

// Main turns the process into a backend if it was started for that, and does not return then. Call it first thing in
// TestMain. others are modes of the caller's own.
func Main(others map[Mode]func()) {
	mode := Mode(os.Getenv(envMode))
	if mode == "" {
		return
	}
	if f := others[mode]; f != nil {
		f()
		os.Exit(0)
	}
	run(mode)
	fmt.Fprintf(os.Stderr, "reexec: there is no mode %q, or it has ended\n", mode)
	os.Exit(1)
}

// Env is the environment entry that starts mode.
func Env(mode Mode) string { return envMode + "=" + string(mode) }

// Spec starts this binary in a mode. Set its Output as needed.
func Spec(mode Mode, args ...string) backend.ProcessSpec {
	// A binary with the race detector would otherwise take a second to exit.
	return backend.ProcessSpec{Path: os.Args[0], Args: args, Env: append(os.Environ(), Env(mode), "GORACE=atexit_sleep_ms=0")}
}

func run(mode Mode) {
	switch mode {
	case sleep, NoHandshake:
		pause()
	case SlowStart:
		d, err := time.ParseDuration(os.Args[1])
		if err != nil {
			panic(err)
		}
		<-time.After(d)
		handlersdk.Serve(handler{mode: Echo})
	case DeadSocket:
		_, _ = os.Stdout.WriteString("1|1|unix|/nonexistent/socket|grpc\n")
		pause()
	case StdoutNoise:
		_, _ = os.Stdout.WriteString("hello from a print\n")
		handlersdk.Serve(handler{mode: Echo})
	case ExitAtStart:
		_, _ = os.Stderr.WriteString("no such module: torch\n")
		os.Exit(3)
	case OtherOne:
		_, _ = os.Stdout.WriteString("1|2|unix|/nonexistent/socket|grpc|\n")
		pause()
	case Malformed, Miscount, Older, Later:
		if err := serveRaw(mode); err != nil {
			panic(err)
		}
	case Echo, LoadFails, SlowLoad, ExitInLoad, Wedge, Crash, Exit137, Fork, Panic, Big, Short, Poison, Bomb, Burn, Chatty:
		handlersdk.Serve(handler{mode: mode})
	}
}

// pause waits for ever.
func pause() {
	for {
		// Only a signal ends it, and then it is called again.
		_ = syscall.Pause()
	}
}

type handler struct{ mode Mode }

var _ handlersdk.Handler = handler{}

// Initialize implements handlersdk.Handler.
func (h handler) Initialize(_ context.Context, m handlersdk.Model) error {
	switch h.mode { //nolint:exhaustive // the others have nothing to initialize
	case LoadFails:
		return errors.New("no weights in " + m.Dir)
	case SlowLoad:
		pause()
	case ExitInLoad:
		os.Exit(4)
	case Fork:
		child := exec.Command(os.Args[0]) //nolint:noctx,gosec // this binary; it is to outlive everything
		child.Env = []string{Env(sleep)}
		child.Stdout, child.Stderr = os.Stdout, os.Stderr
		if err := child.Start(); err != nil {
			return err
		}
		_, _ = os.Stdout.WriteString("child " + strconv.Itoa(child.Process.Pid) + "\n")
	}
	return nil
}

// Handle implements handlersdk.Handler.
func (h handler) Handle(_ context.Context, items []handlersdk.Item) ([]handlersdk.Result, error) {
	results := make([]handlersdk.Result, len(items))
	for i := range items {
		results[i] = handlersdk.Result{Header: items[i].Header}
		if len(items[i].Parts) > 0 {
			results[i].Body = items[i].Parts[0].Data
		}
	}
	switch h.mode { //nolint:exhaustive // the others echo
	case Wedge:
		pause()
	case Crash:
		_, _ = os.Stderr.WriteString("about to crash\n")
		os.Exit(3)
	case Exit137:
		os.Exit(137)
	case Panic:
		panic("the handler's own panic")
	case Poison, Bomb, Burn:
		return results, ruin(h.mode, results)
	case Big:
		for i := range results {
			n, err := strconv.Atoi(string(results[i].Body))
			if err != nil {
				return nil, handlersdk.Errorf(400, "%w", err)
			}
			results[i].Body = bytes.Repeat([]byte("x"), n)
		}
	case Short:
		results = results[1:]
	case Chatty:
		_, _ = os.Stdout.WriteString("\x1e{\"ids\":[\"" + items[0].ID + "\"],\"level\":\"INFO\"}\nto stdout\n")
		_, _ = os.Stderr.WriteString("to stderr\n")
	}
	return results, nil
}
