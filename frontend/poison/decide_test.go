package poison

import (
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/flambeau-serve/flambeau/internal/fault"
	"github.com/flambeau-serve/flambeau/internal/infer"
	"github.com/flambeau-serve/flambeau/plugins/backend"
)

var _ crash = (*backend.CrashError)(nil)

// died is the error of a worker that has ended with so many requests.
func died(reason backend.CrashReason, together int) error {
	c := &backend.Crash{Reason: reason, How: "some signal", Requests: make([]backend.CrashRequest, together)}
	c.Memory.Spared = reason == backend.CrashKilled
	kind := fault.BackendDied
	if reason == backend.CrashOutOfMemory {
		kind = fault.BackendOutOfMemory
	}
	return fault.New(kind, "Worker died.", &backend.CrashError{Crash: c})
}

func TestDecide(t *testing.T) {
	t.Parallel()
	abort, kill, memory, wedged := died(backend.CrashSignal, 1), died(backend.CrashKilled, 1), died(backend.CrashOutOfMemory, 1), died(backend.CrashWedged, 1)
	unknown := fault.New(fault.BackendDied, "Worker died.", &backend.CrashError{
		Crash: &backend.Crash{Reason: backend.CrashKilled, Signal: "SIGKILL", Requests: make([]backend.CrashRequest, 1)},
	})
	bare := fault.New(fault.BackendDied, "Worker died.", nil)
	once, suspected := Past{Tries: 1}, Past{Tries: 1, Deaths: 1}
	for name, tc := range map[string]struct {
		facts        Facts
		past         Past
		retry, blame bool
		deaths       int
		hint         string // in the answer
	}{
		"in a batch":                             {Facts{Err: died(backend.CrashSignal, 8), Batch: 8}, Past{}, true, false, 1, ""},
		"alone, after a batch":                   {Facts{Err: abort, Batch: 1}, suspected, false, true, 2, "nothing but this request"},
		"alone":                                  {Facts{Err: abort, Batch: 1}, Past{}, false, true, 1, "nothing but this request"},
		"exit, alone":                            {Facts{Err: died(backend.CrashExited, 1), Batch: 1}, Past{}, false, true, 1, ""},
		"broke the stream, alone":                {Facts{Err: died(backend.CrashBroken, 1), Batch: 1}, Past{}, false, true, 1, ""},
		"out of memory, in a batch":              {Facts{Err: died(backend.CrashOutOfMemory, 4), Batch: 4}, Past{}, true, false, 1, ""},
		"out of memory, alone":                   {Facts{Err: memory, Batch: 1}, Past{}, false, true, 1, ""},
		"beside another batch":                   {Facts{Err: died(backend.CrashSignal, 2), Batch: 1}, Past{}, true, false, 1, ""},
		"beside another batch, again":            {Facts{Err: died(backend.CrashSignal, 2), Batch: 1}, suspected, true, false, 2, ""},
		"beside another batch, for ever":         {Facts{Err: died(backend.CrashSignal, 2), Batch: 1}, Past{Tries: 2, Deaths: 2}, false, false, 3, "each time"},
		"beside a late one":                      {Facts{Err: died(backend.CrashLate, 5), Batch: 1}, Past{}, true, false, 0, ""},
		"beside a late one, again":               {Facts{Err: died(backend.CrashLate, 5), Batch: 1}, once, true, false, 0, ""},
		"beside a late one, for ever":            {Facts{Err: died(backend.CrashLate, 5), Batch: 1}, Past{Tries: 2}, false, false, 0, "each time"},
		"beside a late one, not to be tried":     {Facts{Err: died(backend.CrashLate, 5), Batch: 1, Never: true}, Past{}, false, false, 0, "`retry` forbids"},
		"killed by an operator":                  {Facts{Err: kill, Batch: 1}, Past{}, true, false, 0, ""},
		"killed by an operator, twice":           {Facts{Err: kill, Batch: 1}, once, false, false, 0, "each time"},
		"killed by an operator, in a batch":      {Facts{Err: died(backend.CrashKilled, 8), Batch: 8}, Past{}, true, false, 0, ""},
		"after a batch, killed by an operator":   {Facts{Err: kill, Batch: 1}, suspected, false, false, 1, "each time"},
		"wedged":                                 {Facts{Err: wedged, Batch: 1}, Past{}, true, false, 0, ""},
		"wedged, twice":                          {Facts{Err: wedged, Batch: 1}, once, false, false, 0, ""},
		"a SIGKILL that may be for memory":       {Facts{Err: unknown, Batch: 1}, Past{}, true, false, 1, ""},
		"such a SIGKILL, twice":                  {Facts{Err: unknown, Batch: 1}, suspected, false, true, 2, ""},
		"nothing is known":                       {Facts{Err: bare, Batch: 1}, Past{}, true, false, 0, ""},
		"nothing is known, twice":                {Facts{Err: bare, Batch: 1}, once, false, false, 0, ""},
		"not delivered":                          {Facts{Err: abort, Batch: 1, Undelivered: true, Never: true}, Past{}, true, false, 0, ""},
		"not delivered, for ever":                {Facts{Err: abort, Batch: 1, Undelivered: true}, Past{Tries: 2}, false, false, 0, ""},
		"not delivered, of a sequence":           {Facts{Err: abort, Batch: 1, Undelivered: true, Sequence: true}, Past{}, false, false, 0, ""},
		"in a batch, a part was answered":        {Facts{Err: died(backend.CrashSignal, 8), Batch: 8, Begun: true}, Past{}, false, false, 1, "a part of the answer"},
		"in a batch of sequences":                {Facts{Err: died(backend.CrashSignal, 8), Batch: 8, Sequence: true}, Past{}, false, false, 1, "begin the sequence again"},
		"in a batch, not to be tried":            {Facts{Err: died(backend.CrashSignal, 8), Batch: 8, Never: true}, Past{}, false, false, 1, "`retry` forbids"},
		"killed by an operator, not to be tried": {Facts{Err: kill, Batch: 1, Never: true}, Past{}, false, false, 0, "`retry` forbids"},
		"alone, not to be tried":                 {Facts{Err: abort, Batch: 1, Never: true}, Past{}, false, true, 1, "nothing but this request"},
		"alone, a part was answered":             {Facts{Err: abort, Batch: 1, Begun: true}, Past{}, false, true, 1, "nothing but this request"},
		"too late":                               {Facts{Err: fault.New(fault.ResponseTimeout, "Worker died.", abort), Batch: 1}, Past{}, false, false, 0, ""},
		"handler's error":                        {Facts{Err: fault.New(fault.HandlerFailed, "no", nil), Batch: 1}, Past{}, false, false, 0, ""},
		"stopped":                                {Facts{Err: fault.New(fault.Draining, "Worker stopped.", nil), Batch: 1}, Past{}, false, false, 0, ""},
	} {
		d := Decide(tc.facts, tc.past)
		if d.Retry != tc.retry || d.Blame != tc.blame || d.Past.Deaths != tc.deaths {
			t.Errorf("%s: %+v", name, d)
		}
		if d.Retry && d.Blame || fault.KindOf(d.Err) != fault.KindOf(tc.facts.Err) || fault.Message(d.Err) != fault.Message(tc.facts.Err) {
			t.Errorf("%s: %+v", name, d)
		}
		f, ok := errors.AsType[*fault.Error](d.Err)
		if !ok || !strings.Contains(f.Hint, tc.hint) {
			t.Errorf("%s: %v", name, d.Err)
		}
		if backend.CrashOf(d.Err) != backend.CrashOf(tc.facts.Err) {
			t.Errorf("%s: the crash is lost", name)
		}
		if was, ok := errors.AsType[*fault.Error](tc.facts.Err); !ok || was.Hint != "" {
			t.Errorf("%s: an error that others have, too, was changed", name)
		}
	}
}

// TestWith says with how many others a request is tried again.
func TestWith(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		facts   Facts
		past    Past
		with    int
		suspect bool
	}{
		"few":                           {Facts{Err: died(backend.CrashSignal, 8), Batch: 8}, Past{}, 1, true},
		"many":                          {Facts{Err: died(backend.CrashSignal, 9), Batch: 1}, Past{}, 3, true},
		"very many":                     {Facts{Err: died(backend.CrashSignal, 1000), Batch: 1}, Past{}, 32, true},
		"many, again":                   {Facts{Err: died(backend.CrashSignal, 32), Batch: 1}, Past{Tries: 1, Deaths: 1}, 1, true},
		"many, after it was not sent":   {Facts{Err: died(backend.CrashSignal, 64), Batch: 1}, Past{Tries: 1, Unsent: 1}, 8, true},
		"a large batch":                 {Facts{Err: died(backend.CrashSignal, 64), Batch: 64}, Past{}, 8, true},
		"nothing is known":              {Facts{Err: fault.New(fault.BackendDied, "Worker died.", nil), Batch: 64}, Past{}, 1, true},
		"not sent":                      {Facts{Err: died(backend.CrashSignal, 64), Batch: 1, Undelivered: true}, Past{}, 0, false},
		"not sent, but suspect already": {Facts{Err: died(backend.CrashSignal, 64), Batch: 1, Undelivered: true}, Past{Tries: 1}, 1, true},
	} {
		if d := Decide(tc.facts, tc.past); !d.Retry || d.With != tc.with || d.Past.Suspect() != tc.suspect {
			t.Errorf("%s: %+v", name, d)
		}
	}
}

// TestOneOfMany looks for the request that ends workers among as many as there may be: by groups and then one by one, with two more workers and no more
// runs than the rule says.
func TestOneOfMany(t *testing.T) {
	t.Parallel()
	for n := 1; n <= 400; n += 1 + n/20 {
		for _, killer := range []int{0, n / 2, n - 1} {
			together := make([]int, n)
			for i := range together {
				together[i] = i
			}
			past, with := make([]Past, n), make([]int, n)
			deaths, runs := 0, 0
			for waiting := together; len(waiting) > 0; runs++ {
				group := waiting
				if runs > 0 {
					group = waiting[:min(with[waiting[0]], len(waiting))]
				}
				waiting = waiting[len(group):]
				if !slices.Contains(group, killer) {
					continue
				}
				deaths++
				var again []int
				for _, i := range group {
					d := Decide(Facts{Err: died(backend.CrashSignal, len(group)), Batch: 1}, past[i])
					if past[i], with[i] = d.Past, d.With; d.Retry {
						again = append(again, i)
					} else if i != killer || !d.Blame || len(group) != 1 {
						t.Fatalf("%d requests, %d ends workers: %d is given up: %+v", n, killer, i, d)
					}
				}
				waiting = append(again, waiting...)
			}
			if most := 2*int(math.Ceil(math.Sqrt(float64(n)))) + fewSuspects; runs > most || deaths > 3 || n <= fewSuspects && deaths > 2 {
				t.Fatalf("%d requests, %d ends workers: %d runs, %d deaths", n, killer, runs, deaths)
			}
		}
	}
}

// FuzzDecide: whatever happens, a request comes to its end after three workers.
func FuzzDecide(f *testing.F) {
	f.Add(uint64(1))
	f.Add(uint64(99))
	reasons := []backend.CrashReason{
		backend.CrashExited, backend.CrashSignal, backend.CrashKilled, backend.CrashOutOfMemory, backend.CrashWedged, backend.CrashBroken,
	}
	f.Fuzz(func(t *testing.T, seed uint64) {
		r := rand.New(rand.NewPCG(seed, 0)) //nolint:gosec // to be had again
		past, retries := Past{}, 0
		for {
			n := 1 + r.IntN(3)
			facts := Facts{
				Err: died(reasons[r.IntN(len(reasons))], n+r.IntN(2)), Batch: n,
				Undelivered: r.IntN(3) == 0, Begun: r.IntN(6) == 0, Sequence: r.IntN(6) == 0, Never: r.IntN(6) == 0,
			}
			d := Decide(facts, past)
			if d.Past.Tries != past.Tries+1 || d.Past.Deaths < past.Deaths || d.Past.Deaths > d.Past.Tries {
				t.Fatalf("%+v after %+v: %+v", facts, past, d)
			}
			if d.Retry && (facts.Begun || facts.Sequence || facts.Never && !facts.Undelivered) {
				t.Fatalf("%+v is tried again", facts)
			}
			if d.Blame && (facts.Batch > 1 || facts.Undelivered) {
				t.Fatalf("%+v is blamed", facts)
			}
			if !d.Retry {
				return
			}
			past = d.Past
			if retries++; retries >= mostTries {
				t.Fatalf("%d retries", retries)
			}
		}
	})
}

// request is one of the simulation's.
type request struct {
	item     infer.Item
	poison   bool
	past     Past
	mark     Mark
	retried  bool
	answers  int
	err      error
	bystands int // workers that somebody else has killed with it
}

// server is what the rules are for: workers that take batches from a queue. Workers are replaced when they die.
type server struct {
	book   *Book
	batch  int
	queue  []*request
	starts int
	killer func() bool // whether somebody kills the worker while it has a batch
	real   func(batch []*request) error
}

var ref = infer.ModelRef{Name: "m", Version: "1.0"}

func (s *server) submit(r *request) {
	if _, err := s.book.Check(ref, &r.item); err != nil {
		r.answers, r.err = r.answers+1, err
		return
	}
	s.queue = append(s.queue, r)
}

// run answers everything that waits, as the queue is to do it: what is gathered is looked up once more, for others like it may have been found out since
// it came, and what is suspect goes alone.
func (s *server) run() {
	for len(s.queue) > 0 {
		var batch []*request
		for len(s.queue) > 0 && len(batch) < s.batch {
			r := s.queue[0]
			mark, err := s.book.Check(ref, &r.item)
			if err != nil {
				r.answers, r.err = r.answers+1, err
				s.queue = s.queue[1:]
				continue
			}
			alone := r.retried || mark.Suspect()
			if alone && len(batch) > 0 {
				break
			}
			r.mark = mark
			batch, s.queue = append(batch, r), s.queue[1:]
			if alone {
				break
			}
		}
		if len(batch) > 0 {
			s.execute(batch)
		}
	}
}

func (s *server) execute(batch []*request) {
	var err error
	switch {
	case s.real != nil:
		err = s.real(batch)
	case slices.ContainsFunc(batch, func(r *request) bool { return r.poison }):
		err = died(backend.CrashSignal, len(batch))
	case s.killer():
		err = died(backend.CrashKilled, len(batch))
		for _, r := range batch {
			r.bystands++
		}
	}
	if err == nil {
		for _, r := range batch {
			r.answers++
			s.book.Answered(r.mark)
		}
		return
	}
	if s.real == nil {
		s.starts++
	}
	var again []*request
	for _, r := range batch {
		d := Decide(Facts{Err: err, Batch: len(batch)}, r.past)
		r.past = d.Past
		switch {
		case d.Retry:
			r.retried = true
			again = append(again, r)
			continue
		case d.Blame:
			s.book.Killed(ref, &r.item, Death{Workers: d.Past.Deaths, How: d.How})
		}
		r.answers, r.err = r.answers+1, d.Err
	}
	s.queue = append(again, s.queue...)
}

func newRequest(id int, body string, poison bool) *request {
	return &request{item: infer.Item{ID: fmt.Sprint("id", id), Parts: []infer.Part{{Name: "body", Data: []byte(body)}}}, poison: poison}
}

func never() bool { return false }

// A batch of eight with one that ends its worker is seven answers and one failure, with two more workers; then the same request costs none.
func TestPoisonInABatch(t *testing.T) {
	t.Parallel()
	for place := range 8 {
		s := &server{book: New(Options{}), batch: 8, starts: 1, killer: never}
		var all []*request
		for i := range 8 {
			r := newRequest(i, fmt.Sprint("body", i), i == place)
			all = append(all, r)
			s.submit(r)
		}
		s.run()
		for i, r := range all {
			if r.answers != 1 || (r.err != nil) != (i == place) {
				t.Errorf("request %d: %d answers, %v", i, r.answers, r.err)
			}
		}
		if !fault.Is(all[place].err, fault.BackendDied) || s.starts > 3 {
			t.Errorf("%v after %d starts", all[place].err, s.starts)
		}
		again := newRequest(100, fmt.Sprint("body", place), true)
		s.submit(again)
		s.run()
		if !fault.Is(again.err, fault.Poisoned) || s.starts > 3 {
			t.Errorf("%v after %d starts", again.err, s.starts)
		}
	}
}

// TestSimulation runs many servers with requests that end their workers, and somebody who kills workers now and then.
func TestSimulation(t *testing.T) {
	t.Parallel()
	for seed := range uint64(3000) {
		r := rand.New(rand.NewPCG(seed, 7)) //nolint:gosec // to be had again
		kills := 0
		s := &server{book: New(Options{}), batch: 1 + r.IntN(8)}
		odds := r.IntN(3) * 20 // in percent: none, some, many
		s.killer = func() bool {
			kill := r.IntN(100) < odds
			if kill {
				kills++
			}
			return kill
		}
		var all []*request
		poisons := map[string]bool{}
		for range 1 + r.IntN(6) {
			for range 1 + r.IntN(12) {
				poison := r.IntN(6) == 0
				body := fmt.Sprint(poison, r.IntN(4))
				if poison {
					poisons[body] = true
				}
				q := newRequest(len(all), body, poison)
				all = append(all, q)
				s.submit(q)
			}
			s.run()
		}
		for _, q := range all {
			switch {
			case q.answers != 1:
				t.Fatalf("seed %d: %d answers", seed, q.answers)
			case q.poison && !fault.Is(q.err, fault.BackendDied, fault.Poisoned):
				t.Fatalf("seed %d: a request that ends its worker got %v", seed, q.err)
			case !q.poison && q.err != nil && (q.bystands == 0 || q.past.Tries < mostAlone):
				t.Fatalf("seed %d: an innocent request got %v", seed, q.err)
			case !q.poison && fault.Is(q.err, fault.Poisoned):
				t.Fatalf("seed %d: an innocent request is refused", seed)
			}
		}
		// Each costs two: with others and alone, or alone twice.
		if most := 2*len(poisons) + kills; s.starts > most {
			t.Fatalf("seed %d: %d workers for %d such requests and %d kills", seed, s.starts, len(poisons), kills)
		}
	}
}
