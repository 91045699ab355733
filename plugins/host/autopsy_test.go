package host

import (
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/flambeau-serve/flambeau/internal/cgroup"
	"github.com/flambeau-serve/flambeau/internal/fault"
	"github.com/flambeau-serve/flambeau/plugins/backend"
)

// machine is a machine of files with control groups of version 2.
type machine struct {
	t    *testing.T
	root string
}

func newMachine(t *testing.T) machine {
	t.Helper()
	m := machine{t, t.TempDir()}
	m.write("proc/self/mountinfo", "31 23 0:28 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n")
	return m
}

func (m machine) write(name, text string) {
	m.t.Helper()
	path := filepath.Join(m.root, name)
	if err := os.MkdirAll(filepath.Dir(path), 0o750); err != nil {
		m.t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		m.t.Fatal(err)
	}
}

func (m machine) put(pid int, group string) {
	m.write("proc/"+strconv.Itoa(pid)+"/cgroup", "0::"+group+"\n")
}

func (m machine) kills(group string, n int) {
	m.write("sys/fs/cgroup"+group+"/memory.events", "max 3\noom 1\noom_kill "+strconv.Itoa(n)+"\n")
}

// Each rise of a group's count is the death of one process, and of no other.
func TestKillsAreClaimedOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMachine(t)
		m.kills("/a", 5) // of processes before this server's
		m.kills("/b", 0)
		for pid, group := range map[int]string{1: "/a", 2: "/a", 3: "/b", 4: "/c"} {
			m.put(pid, group)
		}
		w := newKillWatch(cgroup.System{Root: m.root})
		claim := func(what string, in membership, killed, counted bool) {
			t.Helper()
			got, _, known := w.claim(in)
			if got != killed || known != counted {
				t.Errorf("%s: killed %t, counted %t", what, got, known)
			}
		}
		one, two := w.follow(1, membership{}), w.follow(2, membership{})
		three, four := w.follow(3, membership{}), w.follow(4, membership{})
		claim("nothing has happened", one, false, true)
		m.kills("/a", 6)
		claim("another group", three, false, true)
		claim("the group", one, true, true)
		claim("it was one only", two, false, true)
		claim("no count", four, false, false)
		claim("no group", membership{}, false, false)
		m.kills("/a", 8)
		w.follow(2, two) // a heartbeat sees it
		<-time.After(rememberKill / 2)
		claim("seen before", one, true, true)
		claim("both", two, true, true)
		m.kills("/a", 9)
		w.follow(2, two)
		<-time.After(rememberKill + time.Second)
		claim("long ago", two, false, true)
		m.put(1, "/")
		if w.follow(1, one) != one {
			t.Error("a process that is ending has changed its group")
		}
		m.put(1, "/b")
		moved := w.follow(1, one)
		m.kills("/b", 1)
		claim("the group that it has moved to", moved, true, true)
		for _, in := range []membership{moved, two, three, four, {}} {
			w.leave(in)
		}
		if len(w.groups) != 0 {
			t.Errorf("groups %v are left", w.groups)
		}
	})
}

func TestPulse(t *testing.T) {
	t.Parallel()
	const patience = 5 * time.Second
	start := time.Unix(1000, 0)
	idle := vitals{state: "S", ticks: 7}
	later := func(p *pulse, at time.Duration, after vitals) verdict {
		return p.miss(start.Add(at), start.Add(at+time.Second), idle, after, patience)
	}
	var p pulse
	for at, want := range []verdict{wait, wait, wait, wait, wedged} {
		if got := later(&p, time.Duration(at)*time.Second, idle); got != want {
			t.Errorf("miss %d: %v, want %v", at+1, got, want)
		}
	}
	// A server that was asleep for an hour has missed one heartbeat.
	p = pulse{}
	if got := p.miss(start, start.Add(time.Hour), idle, idle, patience); got != wait {
		t.Errorf("after a pause: %v", got)
	}
	// Who uses the processor is at work, and it takes another whole patience until it is not.
	p = pulse{}
	later(&p, 0, idle)
	later(&p, time.Second, idle)
	busy := vitals{state: "R", ticks: 8}
	if got := later(&p, 6*time.Second, busy); got != atWork {
		t.Errorf("busy: %v", got)
	}
	for at := 7; at < 11; at++ {
		if got := p.miss(start.Add(time.Duration(at)*time.Second), start.Add(time.Duration(at+1)*time.Second), busy, busy, patience); got != wait {
			t.Errorf("after it was busy: %v", got)
		}
	}
	for _, v := range []vitals{{state: "t", ticks: 7, traced: true}, {state: "T", ticks: 7, traced: true}, {state: "S", ticks: 7, eager: true}} {
		p = pulse{missed: 100, since: start, then: idle}
		if got := later(&p, time.Hour, v); got != atWork {
			t.Errorf("in a debugger, or where there is no processor for it: %v", got)
		}
	}
}

func TestVitals(t *testing.T) {
	t.Parallel()
	const rest = " 1 5 5 0 -1 4194304 100 0 0 0 12 30 0 0 20 0 8 0 999\n"
	got, ok := parseVitals("7 (a) b (c) T"+rest, "Name:\tx\nTracerPid:\t0\n")
	if want := (vitals{state: "T", ticks: 42}); !ok || got != want {
		t.Errorf("%+v, %t", got, ok)
	}
	if got, ok := parseVitals("7 (x) t"+rest, "TracerPid:\t12\n"); !ok || !got.traced {
		t.Errorf("%+v, %t", got, ok)
	}
	for _, bad := range []string{"", "7 (x)", "7 (x) S 1 2 3", "7 (x) S 1 5 5 0 -1 4194304 100 0 0 0 a 30", "7 (x) S 1 5 5 0 -1 4194304 100 0 0 0 1 b"} {
		if got, ok := parseVitals(bad, ""); ok {
			t.Errorf("%q: %+v", bad, got)
		}
	}
	own, ok := readVitals(os.Getpid())
	if !ok || own.state == "" || peakOf(os.Getpid()) == 0 {
		t.Errorf("of this process: %+v, %t", own, ok)
	}
	if !isEager(os.Getpid()) {
		t.Error("this process runs and is not said to")
	}
	if _, ok := readVitals(1 << 30); ok || isEager(1<<30) || peakOf(1<<30) != 0 || addressLimitOf(1<<30) != 0 {
		t.Error("of no process")
	}
}

func FuzzVitals(f *testing.F) {
	f.Add("7 (a) b) T 1 5 5 0 -1 4194304 100 0 0 0 12 30 0", "TracerPid: 1")
	f.Fuzz(func(t *testing.T, stat, status string) {
		if v, ok := parseVitals(stat, status); ok && v.state == "" {
			t.Error("a process without a state")
		}
	})
}

func TestReasons(t *testing.T) {
	t.Parallel()
	now := time.Unix(1000, 0)
	said := func(text string, before time.Duration) []backend.CrashLine {
		return []backend.CrashLine{{At: now.Add(-before), Stream: "stderr", Text: text}, {At: now, Stream: "stderr", Text: "more"}}
	}
	signal := func(s syscall.Signal) exitState { return exitState{code: -1, signal: s} }
	killed := exitState{code: -1, signal: syscall.SIGKILL, killed: true}
	for name, tc := range map[string]struct {
		exit  exitState
		body  autopsy
		cause error
		lines []backend.CrashLine
		want  backend.CrashReason
	}{
		"exit":                              {exit: exitState{code: 3}, want: backend.CrashExited},
		"a good end that nobody asked for":  {exit: exitState{}, want: backend.CrashExited},
		"segv":                              {exit: signal(syscall.SIGSEGV), want: backend.CrashSignal},
		"kill":                              {exit: signal(syscall.SIGKILL), want: backend.CrashKilled},
		"hang-up":                           {exit: signal(syscall.SIGHUP), want: backend.CrashKilled},
		"137":                               {exit: exitState{code: 137}, want: backend.CrashKilled},
		"kill for memory":                   {exit: signal(syscall.SIGKILL), body: autopsy{killed: true}, want: backend.CrashOutOfMemory},
		"137 for memory":                    {exit: exitState{code: 137}, body: autopsy{killed: true}, want: backend.CrashOutOfMemory},
		"wedged":                            {exit: killed, cause: errWedged, want: backend.CrashWedged},
		"broken":                            {exit: killed, cause: os.ErrClosed, want: backend.CrashBroken},
		"C++":                               {exit: signal(syscall.SIGABRT), lines: said("  what():  std::bad_alloc", 0), want: backend.CrashOutOfMemory},
		"Python":                            {exit: exitState{code: 1}, lines: said("MemoryError", time.Second), want: backend.CrashOutOfMemory},
		"Python, long ago":                  {exit: exitState{code: 1}, lines: said("MemoryError", time.Minute), want: backend.CrashExited},
		"Python, which went on":             {exit: signal(syscall.SIGSEGV), lines: said("MemoryError", 0), want: backend.CrashSignal},
		"Go":                                {exit: exitState{code: 2}, lines: said("fatal error: runtime: out of memory", 0), want: backend.CrashOutOfMemory},
		"somebody talks about memory":       {exit: exitState{code: 1}, lines: said("caught a MemoryError, and so on", 0), want: backend.CrashExited},
		"a good end with talk about memory": {exit: exitState{}, lines: said("MemoryError", 0), want: backend.CrashExited},
	} {
		tc.body.at = now
		e := &ending{exit: tc.exit, body: tc.body, cause: tc.cause}
		e.crash = crashOf(e, tc.lines)
		if e.crash.Reason != tc.want {
			t.Errorf("%s: %s, want %s", name, e.crash.Reason, tc.want)
		}
		if isMemory := tc.want == backend.CrashOutOfMemory; fault.Is(e.fault(), fault.BackendOutOfMemory) != isMemory || (e.crash.Memory.Evidence != "") != isMemory {
			t.Errorf("%s: %v, evidence %q", name, e.fault(), e.crash.Memory.Evidence)
		}
	}
}

func TestOutOfMemoryText(t *testing.T) {
	t.Parallel()
	const mib = 1 << 20
	for want, m := range map[string]backend.CrashMemory{
		"when it used 61.0 MiB; its control group used 63.9 MiB of a limit of 64.0 MiB.": {Peak: 61 * mib, Limit: 64 * mib, Used: 67000000, LimitOf: "its control group /x"},
		"memory; the limit of its control group is 1.5 GiB.":                             {Limit: 1536 * mib, LimitOf: "its control group /x"},
		"when it used 900 bytes; it may address 2.0 KiB.":                                {Peak: 900, Limit: 2048, LimitOf: addressSpace},
		"memory; no limit is set, so the machine had no more.":                           {},
	} {
		if got := outOfMemoryText(m); !strings.HasPrefix(got, "Worker died. It ran out of memory") || !strings.HasSuffix(got, want) {
			t.Errorf("%q, want %q", got, want)
		}
	}
}

// The beginning of a long report of a death is kept with its end.
func TestReportsAreKept(t *testing.T) {
	t.Parallel()
	var l lastLines
	l.add("before")
	l.add("panic: first, and caught")
	l.add("panic: the reason")
	for n := range 200 {
		l.add(strconv.Itoa(n))
	}
	got := l.get()
	if len(got) != keptLines || got[0] != "panic: the reason" || got[1] != "0" || got[keptFatal] != strconv.Itoa(200-keptLines+keptFatal) || got[len(got)-1] != "199" {
		t.Errorf("%q", got)
	}
	var short lastLines
	short.add("panic: the reason")
	short.add("goroutine 1")
	if got := short.get(); len(got) != 2 {
		t.Errorf("%q", got)
	}
}
