package e2e

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// Sample is what one client saw of one request. Times count from the begin of the load.
type Sample struct {
	Sent, Received time.Duration
	Number         int // the answer, when it is a number; -1 when not
	Client, Status int // Status 0: no answer at all
	Failure        string
}

// LoadOptions say what a load sends.
type LoadOptions struct {
	Clients int
	Path    string            // below the inference address: "/predictions/m"
	Body    func() string     // nil for "x"
	Every   time.Duration     // the shortest time between two requests of one client; 0: no pause
	Limit   time.Duration     // on one request; 0 for the tests' limit
	Header  map[string]string // added to each request

	// Number finds the number in an answer; nil: the answer is one.
	Number func(answer []byte) (int, error)
}

// Load is a number of clients, each of which sends its next request when it has the answer to the last one, on a connection that it keeps.
type Load struct {
	Began time.Time

	options   LoadOptions
	url       string
	transport *http.Transport
	stop      chan struct{}
	ended     sync.WaitGroup
	halted    sync.Once
	answered  atomic.Int64
	failed    atomic.Int64
	newest    atomic.Int64
	samples   [][]Sample // by client; each is its client's own until ended
}

// StartLoad begins a load. The test's end stops it, unless Stop came before.
func (s *Server) StartLoad(t *testing.T, options LoadOptions) *Load {
	t.Helper()
	return LoadOn(t, s.Inference, options)
}

// LoadOn is StartLoad for any address.
func LoadOn(t *testing.T, address string, options LoadOptions) *Load {
	t.Helper()
	if options.Body == nil {
		options.Body = func() string { return "x" }
	}
	l := &Load{
		Began: time.Now(), options: options, url: address + options.Path, stop: make(chan struct{}), samples: make([][]Sample, options.Clients),
		transport: &http.Transport{MaxIdleConnsPerHost: options.Clients, MaxConnsPerHost: options.Clients, DisableCompression: true},
	}
	ctx := context.WithoutCancel(t.Context()) // a test that fails does not break off what runs: each request has its limit
	for n := range options.Clients {
		l.ended.Go(func() { l.client(ctx, n) })
	}
	t.Cleanup(func() { l.Stop() })
	return l
}

func (l *Load) client(ctx context.Context, n int) {
	for {
		began := time.Now()
		select {
		case <-l.stop:
			return
		default:
		}
		sample := l.ask(ctx)
		sample.Client = n
		l.answered.Add(1)
		if sample.Failure != "" {
			l.failed.Add(1)
		}
		l.samples[n] = append(l.samples[n], sample)
		if l.options.Every > 0 {
			select {
			case <-l.stop:
				return
			case <-time.After(time.Until(began.Add(l.options.Every))):
			}
		}
	}
}

func (l *Load) ask(ctx context.Context) Sample {
	ctx, cancel := context.WithTimeout(ctx, cmp.Or(l.options.Limit, askLimit))
	defer cancel()
	sample := Sample{Number: -1}
	fail := func(err error) Sample {
		sample.Received, sample.Failure = time.Since(l.Began), err.Error()
		return sample
	}
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, l.url, strings.NewReader(l.options.Body()))
	if err != nil {
		return fail(err)
	}
	request.Header.Set("Content-Type", "application/octet-stream")
	for name, value := range l.options.Header {
		request.Header.Set(name, value)
	}
	sample.Sent = time.Since(l.Began)
	response, err := l.transport.RoundTrip(request)
	if err != nil {
		return fail(err)
	}
	defer response.Body.Close() //nolint:errcheck // read to its end or to an error
	text, err := io.ReadAll(response.Body)
	sample.Status = response.StatusCode
	if err != nil {
		return fail(err)
	}
	sample.Received = time.Since(l.Began)
	number, err := l.number(text)
	switch {
	case response.StatusCode != http.StatusOK:
		return fail(fmt.Errorf("status %d, reason %q, hint %q: %s", response.StatusCode, response.Header.Get("X-Flambeau-Reason"),
			response.Header.Get("X-Flambeau-Hint"), strings.Join(strings.Fields(string(text)), " ")))
	case err != nil:
		return fail(errors.New("not a number: " + strconv.Quote(string(text))))
	}
	sample.Number = number
	for seen := l.newest.Load(); int64(number) > seen && !l.newest.CompareAndSwap(seen, int64(number)); seen = l.newest.Load() {
	}
	return sample
}

func (l *Load) number(answer []byte) (int, error) {
	if l.options.Number != nil {
		return l.options.Number(answer)
	}
	return strconv.Atoi(string(answer))
}

// Now is the time on the load's clock.
func (l *Load) Now() time.Duration { return time.Since(l.Began) }

// Answered is how many requests have ended so far, well or not.
func (l *Load) Answered() int64 { return l.answered.Load() }

// Failed is how many of them have failed.
func (l *Load) Failed() int64 { return l.failed.Load() }

// Newest is the highest number that was answered so far.
func (l *Load) Newest() int { return int(l.newest.Load()) }

// Stop lets each client finish its request, and gives all that they saw, in the order of sending.
func (l *Load) Stop() []Sample {
	l.halted.Do(func() { close(l.stop) })
	l.ended.Wait()
	l.transport.CloseIdleConnections()
	all := slices.Concat(l.samples...)
	slices.SortFunc(all, func(a, b Sample) int { return cmp.Compare(a.Sent, b.Sent) })
	return all
}

// Mark says that from a time on no request may be answered with less than a number.
type Mark struct {
	At     time.Duration
	Number int
}

// Stale gives the samples whose answer is older than it may be: than what a mark says that lies before the request, or than an answer that
// somebody had received before the request was sent. Samples are in the order of sending, as Stop gives them.
func Stale(samples []Sample, marks []Mark) []Sample {
	all := slices.Clone(marks)
	for _, s := range samples {
		if s.Number >= 0 {
			all = append(all, Mark{At: s.Received, Number: s.Number})
		}
	}
	slices.SortFunc(all, func(a, b Mark) int { return cmp.Compare(a.At, b.At) })
	var stale []Sample
	least, next := -1, 0
	for _, s := range samples {
		for next < len(all) && all[next].At < s.Sent {
			least = max(least, all[next].Number)
			next++
		}
		if s.Number >= 0 && s.Number < least {
			stale = append(stale, s)
		}
	}
	return stale
}

// Failures gives the samples that failed.
func Failures(samples []Sample) []Sample {
	return slices.DeleteFunc(slices.Clone(samples), func(s Sample) bool { return s.Failure == "" })
}

// Latency is how long requests took.
type Latency struct {
	Count         int
	P50, P99, Max time.Duration
}

// Latencies is about the requests that were answered well and sent in a span of time.
func Latencies(samples []Sample, from, to time.Duration) Latency {
	var all []time.Duration
	for _, s := range samples {
		if s.Failure == "" && s.Sent >= from && s.Sent < to {
			all = append(all, s.Received-s.Sent)
		}
	}
	if len(all) == 0 {
		return Latency{}
	}
	slices.Sort(all)
	return Latency{Count: len(all), P50: all[len(all)/2], P99: all[len(all)*99/100], Max: all[len(all)-1]}
}

// String is the latency for a table.
func (l Latency) String() string {
	ms := func(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }
	return fmt.Sprintf("%8d requests, p50 %7.2f ms, p99 %7.2f ms, longest %8.2f ms", l.Count, ms(l.P50), ms(l.P99), ms(l.Max))
}

// RequireNoFailure fails the test when a sample failed, and shows the first of them.
func RequireNoFailure(t *testing.T, samples []Sample) {
	t.Helper()
	showSamples(t, "failed", Failures(samples), len(samples))
}

// RequireFresh fails the test when an answer is older than it may be.
func RequireFresh(t *testing.T, samples []Sample, marks []Mark) {
	t.Helper()
	showSamples(t, "had an answer from an older version than the newest that was completed before", Stale(samples, marks), len(samples))
}

func showSamples(t *testing.T, what string, some []Sample, all int) {
	t.Helper()
	for i, s := range some {
		if i == 5 {
			break
		}
		t.Errorf("client %d, sent %v, received %v: answer %d, status %d %s", s.Client, s.Sent, s.Received, s.Number, s.Status, s.Failure)
	}
	if len(some) > 0 {
		t.Errorf("%d of %d requests %s", len(some), all, what)
	}
}
