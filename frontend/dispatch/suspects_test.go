package dispatch

import (
	"context"
	"errors"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/flambeau-serve/flambeau/frontend/batch"
	"github.com/flambeau-serve/flambeau/frontend/poison"
	"github.com/flambeau-serve/flambeau/internal/fault"
	"github.com/flambeau-serve/flambeau/internal/infer"
	"github.com/flambeau-serve/flambeau/modelstore/archive"
	"github.com/flambeau-serve/flambeau/plugins/backend"
	"github.com/flambeau-serve/flambeau/plugins/backendtest"
)

// process is a worker that runs its requests at the same time. A request says what becomes of it: "2s" is answered after two seconds, "bomb 2s" ends the
// process then, "hang" is never answered, and "piece 2s" is answered in two pieces.
type process struct {
	*backendtest.Instance

	all *processes

	mu       sync.Mutex // guards what follows
	inside   int
	suspects int // of them, those that are not of the stream
	most     int // the most suspects at the same time
	began    []string
}

// processes launches them.
type processes struct {
	alone bool // one request at a time

	mu  sync.Mutex // guards all
	all []*process
}

func (l *processes) Launch(context.Context, backend.ProcessSpec) (backend.Instance, error) {
	time.Sleep(500 * time.Millisecond)
	p := &process{Instance: backendtest.NewInstance("process"), all: l}
	p.LoadFunc = func(context.Context, backend.LoadSpec) (backend.Info, error) {
		return backend.Info{Concurrent: !l.alone}, nil
	}
	p.PredictFunc = p.predict
	l.mu.Lock()
	defer l.mu.Unlock()
	l.all = append(l.all, p)
	return p, nil
}

func (l *processes) launched() []*process {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.all
}

// calls counts how often a request came to a process.
func (l *processes) calls(body string) (n int) {
	for _, p := range l.launched() {
		p.mu.Lock()
		for _, b := range p.began {
			if b == body {
				n++
			}
		}
		p.mu.Unlock()
	}
	return n
}

// Kill implements backend.Killer.
func (p *process) Kill(cause error) { p.end(backend.CrashLate, cause) }

func (p *process) end(reason backend.CrashReason, cause error) {
	p.mu.Lock()
	c := &backend.Crash{Reason: reason, How: "it ended", Requests: make([]backend.CrashRequest, p.inside)}
	p.mu.Unlock()
	if reason == backend.CrashKilled {
		c.Signal = "SIGTERM"
	}
	p.Die(fault.New(fault.BackendDied, "Worker died.", &backend.CrashError{Crash: c, Cause: cause}))
}

func (p *process) predict(ctx context.Context, items []infer.Item) ([]infer.Result, error) {
	body := string(items[0].Parts[0].Data)
	p.mu.Lock()
	p.inside++
	if body != "10ms" {
		p.suspects++
		p.most = max(p.most, p.suspects)
	}
	p.began = append(p.began, body)
	p.mu.Unlock()
	defer func() {
		select {
		case <-p.Done(): // it had them all at its end
		default:
			p.mu.Lock()
			p.inside--
			if body != "10ms" {
				p.suspects--
			}
			p.mu.Unlock()
		}
	}()
	what, long, _ := strings.Cut(body, " ")
	if what != "bomb" && what != "piece" {
		what, long = "work", what
	}
	if what == "piece" {
		items[0].Emit(infer.Result{Body: []byte("a part")})
	}
	var after <-chan time.Time // never, for "hang"
	if d, err := time.ParseDuration(long); err == nil {
		after = time.After(d)
	}
	select {
	case <-after:
	case <-p.Done():
		return nil, p.Err()
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
	if what == "bomb" {
		p.end(backend.CrashSignal, nil)
		return nil, p.Err()
	}
	return backendtest.Echo(items), nil
}

// crowd sends requests and notes what became of them.
type crowd struct {
	scene *scene
	all   sync.WaitGroup

	mu      sync.Mutex // guards what follows
	answers map[string][]error
	longest time.Duration // of those that are not long
}

func newCrowd(t *testing.T, l *processes, set archive.Settings) *crowd {
	t.Helper()
	set.JobQueueSize = new(1000)
	c := &crowd{scene: newScene(t, l, archive.Archive{Settings: set}, 1), answers: map[string][]error{}}
	c.scene.opts.Poison = poison.New(poison.Options{})
	return c
}

func (c *crowd) send(ctx context.Context, body string) {
	c.all.Go(func() {
		begun := time.Now()
		it := infer.Item{ID: body, Parts: []infer.Part{{Name: "body", Data: []byte(body)}}, Emit: func(infer.Result) {}}
		_, err := c.scene.Submit(ctx, infer.ModelRef{Name: "m"}, it)
		c.mu.Lock()
		defer c.mu.Unlock()
		c.answers[body] = append(c.answers[body], err)
		if body == "10ms" {
			c.longest = max(c.longest, time.Since(begun))
		}
	})
}

// stream sends short requests, one after each pause, for a time.
func (c *crowd) stream(ctx context.Context, pause, long time.Duration) {
	c.all.Go(func() {
		for end := time.Now().Add(long); time.Now().Before(end); time.Sleep(pause) {
			c.send(ctx, "10ms")
		}
	})
}

// require has all of a kind of requests end as one does.
func (c *crowd) require(t *testing.T, body string, n int, kind fault.Kind, ok bool) {
	t.Helper()
	if got := len(c.answers[body]); got != n {
		t.Errorf("%d answers to %q, want %d", got, body, n)
	}
	for _, err := range c.answers[body] {
		if ok != (err == nil) || !ok && !fault.Is(err, kind) {
			t.Errorf("%q ended with %v", body, err)
		}
	}
}

// TestOneOfManyEndsTheWorker: of 64 requests that one worker has at the same time one ends it. It is found with two more workers and few runs in which it is
// kept from the others, who do not wait long.
func TestOneOfManyEndsTheWorker(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := &processes{}
		c := newCrowd(t, l, archive.Settings{})
		for range 63 {
			c.send(t.Context(), "100ms")
		}
		c.send(t.Context(), "bomb 50ms")
		time.Sleep(60 * time.Millisecond) // it has happened
		c.stream(t.Context(), 20*time.Millisecond, 20*time.Second)
		c.all.Wait()
		c.require(t, "100ms", 63, 0, true)
		c.require(t, "bomb 50ms", 1, fault.BackendDied, false)
		c.require(t, "10ms", 1000, 0, true)
		if n := len(l.launched()); n != 4 || l.calls("bomb 50ms") != 3 {
			t.Errorf("%d workers were started, and %d had it", n, l.calls("bomb 50ms"))
		}
		second := l.launched()[1]
		second.mu.Lock()
		if second.most != 8 {
			t.Errorf("the second worker had %d of them at the same time", second.most)
		}
		second.mu.Unlock()
		// Whoever comes while a worker is down waits for its start, and with bad luck for two more, each after a pause of a second.
		if c.longest > 4*time.Second {
			t.Errorf("another one took %s", c.longest)
		}
		if list := c.scene.opts.Poison.List(infer.ModelRef{Name: "m", Version: "1.0"}); len(list) != 1 || !list[0].Refuse {
			t.Errorf("remembered: %+v", list)
		}
		c.scene.end(t)
	})
}

// TestLongSuspects: a worker with long requests is killed from outside. They are tried again, and the others are not kept waiting for as long as they take.
func TestLongSuspects(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := &processes{}
		c := newCrowd(t, l, archive.Settings{ResponseTimeout: new(5 * time.Minute)})
		begun := time.Now()
		for range 12 {
			c.send(t.Context(), "60s")
		}
		time.Sleep(time.Second)
		l.launched()[0].end(backend.CrashKilled, nil)
		c.stream(t.Context(), 100*time.Millisecond, 2*time.Minute)
		c.all.Wait()
		c.require(t, "60s", 12, 0, true)
		c.require(t, "10ms", 1200, 0, true)
		if c.longest > 4*time.Second {
			t.Errorf("another one took %s", c.longest)
		}
		if n := l.calls("60s"); n != 24 || len(l.launched()) != 2 {
			t.Errorf("%d calls, %d workers", n, len(l.launched()))
		}
		if took := time.Since(begun); took > 125*time.Second {
			t.Errorf("all took %s", took)
		}
		c.scene.end(t)
	})
}

// TestBesideALateOne: what a worker had that was ended because another request was late is tried again, unless something forbids it.
func TestBesideALateOne(t *testing.T) {
	for name, tt := range map[string]struct {
		set    archive.Settings
		beside string
		ok     bool
		calls  int
	}{
		"tried again":       {archive.Settings{}, "4s", true, 2},
		"not again":         {archive.Settings{NoRetry: true}, "4s", false, 1},
		"a part was passed": {archive.Settings{}, "piece 4s", false, 1},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				l := &processes{}
				tt.set.ResponseTimeout = new(5 * time.Second)
				c := newCrowd(t, l, tt.set)
				if strings.HasPrefix(tt.beside, "piece") { // it is heard, and then nothing
					c.send(t.Context(), tt.beside)
					time.Sleep(time.Second)
					c.send(t.Context(), "hang")
					time.Sleep(time.Second)
					l.launched()[0].Kill(nil)
				} else {
					c.send(t.Context(), "hang")
					time.Sleep(2 * time.Second)
					c.send(t.Context(), tt.beside)
				}
				c.all.Wait()
				n := 1
				c.require(t, tt.beside, n, fault.BackendDied, tt.ok)
				c.require(t, "hang", n, fault.ResponseTimeout, false)
				if got := l.calls(tt.beside); got != tt.calls {
					t.Errorf("%d calls, want %d", got, tt.calls)
				}
				c.scene.end(t)
			})
		})
	}
}

// TestManyBesideLateOnes: whoever is there each time that a worker is ended is tried a few times, and not for ever; nothing of it is remembered.
func TestManyBesideLateOnes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := &processes{}
		c := newCrowd(t, l, archive.Settings{ResponseTimeout: new(5 * time.Second)})
		for range 12 {
			c.send(t.Context(), "hang")
			time.Sleep(100 * time.Millisecond)
		}
		c.all.Wait()
		for _, err := range c.answers["hang"] {
			if !fault.Is(err, fault.ResponseTimeout, fault.BackendDied) {
				t.Error(err)
			}
		}
		if n := l.calls("hang"); n > 36 {
			t.Errorf("%d calls for 12 requests", n)
		}
		if list := c.scene.opts.Poison.List(infer.ModelRef{Name: "m", Version: "1.0"}); len(list) != 0 {
			t.Errorf("remembered: %+v", list)
		}
		c.scene.end(t)
	})
}

// TestNobodyIsTriedAgainForNobody: a request whose client has left, or whose time is over, is not given to another worker.
func TestNobodyIsTriedAgainForNobody(t *testing.T) {
	for name, alone := range map[string]bool{"many slots": false, "one slot": true} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				l := &processes{alone: alone}
				c := newCrowd(t, l, archive.Settings{BatchSize: new(4), MaxBatchDelay: new(10 * time.Millisecond)})
				leaving, leave := context.WithCancel(t.Context())
				short, cancel := context.WithTimeout(t.Context(), 1500*time.Millisecond)
				defer cancel()
				c.send(t.Context(), "bomb 1s")
				time.Sleep(time.Millisecond)
				c.send(leaving, "7s")
				c.send(short, "8s")
				c.send(t.Context(), "3s")
				time.Sleep(500 * time.Millisecond)
				leave()
				time.Sleep(700 * time.Millisecond) // the others wait for their turn, or have it
				c.all.Wait()
				c.require(t, "3s", 1, 0, true)
				c.require(t, "bomb 1s", 1, fault.BackendDied, false)
				if n := l.calls("7s") + l.calls("8s"); n > 3 || l.calls("7s") > 1 {
					t.Errorf("%d calls for the two that nobody waits for: %d and %d", n, l.calls("7s"), l.calls("8s"))
				}
				c.scene.end(t)
			})
		})
	}
}

// TestBrokenQueueIsReplaced: a queue that has ended by itself is followed by another one.
func TestBrokenQueueIsReplaced(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newScene(t, slow(time.Second), archive.Archive{}, 1)
		defer s.end(t)
		ref := infer.ModelRef{Name: "m"}
		v, err := s.models.Resolve(ref)
		if err != nil {
			t.Fatal(err)
		}
		l, err := s.line(v)
		if err != nil {
			t.Fatal(err)
		}
		l.queue.Close(fault.New(fault.Internal, "it is broken", nil))
		<-l.done
		synctest.Wait()
		if _, err := s.Submit(t.Context(), ref, infer.Item{}); err != nil {
			t.Error(err)
		}
		if next, err := s.line(v); err != nil || next == l {
			t.Errorf("%v, the same: %t", err, next == l)
		}
	})
}

// TestBrokenQueueIsReplacedAtOnce: one that has ended by itself is set aside by the first request that it refuses, while a batch of it still runs.
func TestBrokenQueueIsReplacedAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newScene(t, slow(time.Second), archive.Archive{}, 1)
		defer s.end(t)
		ref := infer.ModelRef{Name: "m"}
		v, err := s.models.Resolve(ref)
		if err != nil {
			t.Fatal(err)
		}
		running := make(chan error, 1)
		go func() {
			_, err := s.Submit(t.Context(), ref, infer.Item{})
			running <- err
		}()
		synctest.Wait()
		l, err := s.line(v)
		if err != nil {
			t.Fatal(err)
		}
		l.queue.Close(fault.New(fault.Internal, "it is broken", batch.ErrBroken))
		if _, err := s.Submit(t.Context(), ref, infer.Item{}); !errors.Is(err, batch.ErrBroken) {
			t.Errorf("refused with %v", err)
		}
		if next, err := s.line(v); err != nil || next == l {
			t.Errorf("%v, the same: %t", err, next == l)
		}
		if _, err := s.Submit(t.Context(), ref, infer.Item{}); err != nil {
			t.Error(err)
		}
		if err := <-running; err != nil {
			t.Errorf("what ran: %v", err)
		}
	})
}

// panicking is a queue whose goroutine panics.
type panicking struct {
	queue

	closed, failed error
}

func (*panicking) Run(context.Context) { panic("a bug") }
func (p *panicking) Close(err error)   { p.closed = err }
func (p *panicking) Fail(err error)    { p.failed = err }

// TestPanicOfAQueueIsContained: it is told, and what waits is answered.
func TestPanicOfAQueueIsContained(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newScene(t, slow(time.Second), archive.Archive{}, 1)
		defer s.end(t)
		var told error
		s.opts.Panicked = func(ref infer.ModelRef, err error) {
			if told = err; ref != (infer.ModelRef{Name: "m", Version: "1.0"}) {
				t.Errorf("of %s", ref)
			}
		}
		v, err := s.models.Resolve(infer.ModelRef{Name: "m"})
		if err != nil {
			t.Fatal(err)
		}
		q := &panicking{}
		s.run(v, q)
		if told == nil || q.closed != told || q.failed != told || !strings.Contains(fault.DetailOf(told), "a bug") { //nolint:errorlint // the same one
			t.Errorf("told %v, closed with %v, failed with %v", told, q.closed, q.failed)
		}
	})
}
