// Command libflambeau is the C library that a Python worker loads: the plugin's side of the process border behind four
// functions (docs/protocol.md). Build it with -buildmode=c-shared.
package main

/*
#cgo CFLAGS: -std=c11
#include "flambeau.h"
*/
import "C"

import (
	"errors"
	"fmt"
	"os"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/flambeau-serve/flambeau/handlersdk/pluginserver"
)

// goThreads is how many threads run Go code at the same time: one to receive, one to send. The rest belongs to Python.
const goThreads = 2

// ahead is how many batches are ready for flambeau_take, so that the next one is at hand when one is done.
const ahead = 2

// started is the library's only state: C functions have no receiver.
var started atomic.Pointer[library] //nolint:gochecknoglobals // see above

// starting lets one call of flambeau_start at a time through.
var starting sync.Mutex //nolint:gochecknoglobals // see above

//export flambeau_start
func flambeau_start(env *C.char, envLen C.uint64_t, handshakeFD, lifelineFD C.int32_t) C.int32_t {
	return report(start(C.GoStringN(env, C.int(envLen)), int(handshakeFD), int(lifelineFD)))
}

//export flambeau_take
func flambeau_take(job *C.flambeau_job) C.int32_t {
	lib := started.Load()
	if lib == nil {
		return report(errNotStarted)
	}
	j := lib.take()
	if j == nil {
		hand(job, 0, kindStop, nil)
		return C.int32_t(kindStop)
	}
	hand(job, j.id, j.kind, j.data)
	return C.int32_t(j.kind)
}

// hand fills C's job in, as plain numbers. A pointer written as one would have a write barrier: while a collection runs, the collector would take the
// address of an earlier job, which is still there, for a pointer to something alive.
func hand(job *C.flambeau_job, id uint64, kind int, data []byte) {
	words := (*[4]uint64)(unsafe.Pointer(job))
	words[0], words[1] = id, uint64(kind)
	words[2], words[3] = uint64(uintptr(unsafe.Pointer(unsafe.SliceData(data)))), uint64(len(data))
}

// The words of hand are the fields of the struct on every platform where this compiles.
const (
	_ = uint(unsafe.Sizeof(C.flambeau_job{}) - 4*unsafe.Sizeof(uint64(0)))
	_ = uint(4*unsafe.Sizeof(uint64(0)) - unsafe.Sizeof(C.flambeau_job{}))
)

//export flambeau_give
func flambeau_give(id C.uint64_t, data *C.uint8_t, length C.uint64_t, last C.int32_t) C.int32_t {
	lib := started.Load()
	if lib == nil {
		return report(errNotStarted)
	}
	if data == nil && length > 0 {
		return report(errors.New("flambeau_give: data is NULL and len is not 0"))
	}
	// The caller's memory is its own again when this returns.
	answer := append([]byte(nil), unsafe.Slice((*byte)(data), int(length))...)
	return report(lib.give(uint64(id), answer, last != 0))
}

var errNotStarted = errors.New("flambeau_start was not called, or failed")

// report keeps the error for flambeau_error and gives the C result. It runs on the thread that called the function.
func report(err error) C.int32_t {
	if err == nil {
		return 0
	}
	text := err.Error()
	C.flambeau_set_error((*C.char)(unsafe.Pointer(unsafe.StringData(text))), C.uint64_t(len(text)))
	return -1
}

// start checks everything, writes the handshake and returns; a goroutine serves from then on.
func start(env string, handshakeFD, lifelineFD int) error {
	starting.Lock()
	defer starting.Unlock()
	if started.Load() != nil {
		return errors.New("flambeau_start was called before: a process serves once")
	}
	runtime.GOMAXPROCS(goThreads)
	if err := setenv(env); err != nil {
		return err
	}
	if err := pluginserver.CheckCookie(); err != nil {
		return err
	}
	limit, err := pluginserver.MaxMessageBytes()
	if err != nil {
		return err
	}
	if lifelineFD >= 0 {
		if err := watchLifeline(lifelineFD); err != nil {
			return err
		}
	}
	handshake, err := duplicate(handshakeFD, "handshake")
	if err != nil {
		return err
	}
	lib := newLibrary()
	server, err := pluginserver.New(pluginserver.Options{
		Backend: lib, Handshake: handshake, MaxMessageBytes: limit, Parallel: ahead,
	})
	if err != nil {
		return err
	}
	failed := make(chan error, 1)
	go func() {
		failed <- server.Serve()
		lib.stop()
	}()
	select {
	case <-server.Ready():
		started.Store(lib)
		return nil
	case err := <-failed:
		return fmt.Errorf("the server side of the worker did not start: %w", err)
	}
}

func watchLifeline(fd int) error {
	lifeline, err := duplicate(fd, "lifeline")
	if err != nil {
		return err
	}
	return pluginserver.WatchLifeline(lifeline)
}

// duplicate gives a copy that the library owns: the caller may close its descriptor whenever it likes, and children of the
// process do not inherit the copy.
func duplicate(fd int, name string) (*os.File, error) {
	own, err := unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("descriptor %d (%s) is not open: %w", fd, name, err)
	}
	return os.NewFile(uintptr(own), name), nil
}

// setenv hands over KEY=VALUE strings, each ended by NUL: the library sees the environment that the process was started
// with, and nothing that Python has set since.
func setenv(env string) error {
	for entry := range strings.SplitSeq(strings.TrimSuffix(env, "\x00"), "\x00") {
		if entry == "" {
			continue
		}
		key, value, ok := strings.Cut(entry, "=")
		if !ok || key == "" {
			return fmt.Errorf("flambeau_start: %q in env is not KEY=VALUE", entry)
		}
		if err := os.Setenv(key, value); err != nil {
			return fmt.Errorf("flambeau_start: set %s: %w", key, err)
		}
	}
	return nil
}

func main() {}
