package host

import (
	"os"
	"os/exec"
	"runtime"

	"golang.org/x/sys/unix"
)

// pipeSet opens the pipes of a process. Their child's ends block, as programs expect of their outputs; our own can be
// waited for with a deadline. The first error is kept, and nothing is opened after it.
type pipeSet struct {
	own, child []*os.File
	err        error
}

// fromChild opens a pipe that the child writes to.
func (s *pipeSet) fromChild() (own, child *os.File) {
	r, w := s.open()
	return s.add(r, w)
}

// toChild opens a pipe that the child reads from. Both ends are given in the order of fromChild.
func (s *pipeSet) toChild() (own, child *os.File) {
	r, w := s.open()
	return s.add(w, r)
}

// socketBuffer is how much a socket for batches holds, in bytes.
const socketBuffer = 1 << 20

// pair opens two connected sockets. Both ends are given in the order of fromChild.
func (s *pipeSet) pair() (own, child *os.File) {
	fds := [2]int{-1, -1}
	if s.err == nil {
		fds, s.err = unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	}
	for _, fd := range fds {
		// A large body goes in one piece then; where the system allows less, it takes what it gets.
		_ = unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_SNDBUF, socketBuffer)
	}
	return s.add(fds[0], fds[1])
}

func (s *pipeSet) open() (r, w int) {
	fds := []int{-1, -1}
	if s.err == nil {
		s.err = unix.Pipe2(fds, unix.O_CLOEXEC)
	}
	return fds[0], fds[1]
}

func (s *pipeSet) add(ownFD, childFD int) (own, child *os.File) {
	if s.err != nil {
		return nil, nil
	}
	s.err = unix.SetNonblock(ownFD, true)
	own, child = os.NewFile(uintptr(ownFD), "pipe"), os.NewFile(uintptr(childFD), "pipe")
	s.own, s.child = append(s.own, own), append(s.child, child)
	return own, child
}

func (s *pipeSet) closeOwnEnds() {
	for _, f := range s.own {
		closeFile(f)
	}
}

func (s *pipeSet) closeChildEnds() {
	for _, f := range s.child {
		closeFile(f)
	}
}

func closeFile(f *os.File) {
	// Pipes have nothing to lose at their end.
	_ = f.Close()
}

// starter starts all the processes of a launcher from one thread: the kernel sends a child its parent death signal when
// the thread that started it ends, and Go ends threads as it likes.
type starter struct {
	requests chan startRequest // closed by close
	ended    chan struct{}     // closed by run
}

type startRequest struct {
	cmd    *exec.Cmd
	result chan error
}

func newStarter() *starter {
	s := &starter{requests: make(chan startRequest), ended: make(chan struct{})}
	go s.run()
	return s
}

func (s *starter) run() {
	defer close(s.ended)
	runtime.LockOSThread()
	// Without the unlock the thread would end with the goroutine.
	defer runtime.UnlockOSThread()
	for r := range s.requests {
		r.result <- r.cmd.Start()
	}
}

// start starts cmd. It must not be called after close.
func (s *starter) start(cmd *exec.Cmd) error {
	r := startRequest{cmd: cmd, result: make(chan error, 1)}
	s.requests <- r
	return <-r.result
}

// close ends the goroutine and gives its thread back.
func (s *starter) close() {
	close(s.requests)
	<-s.ended
}
