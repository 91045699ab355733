// Command load sends requests to a model server on this machine, at a given pace whether or not answers come, or with a number of clients that changes, and writes what
// became of each.
//
// The first line that it writes is the time of its start, in seconds since 1970. Each further line is a request: when it was due, when it began, when its last byte was
// written, and when its answer had been read, in seconds since the start; the status, 0 for none; and what kind of client sent it. A time that there was none of is -1.
package main

import (
	"bufio"
	"context"
	"flag"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"
)

// options are what is asked for.
type options struct {
	addr, path string
	bytes      int           // of a body
	rate       float64       // requests in a second, at random times; 0 for clients
	length     time.Duration // with a rate
	phases     []phase       // without one
	patient    int           // every so many-th request is sent whole before its answer is read; 0 for none
	limit      time.Duration // on one request
	most       int           // requests at the same time with a rate; what would be more is not sent
}

// phase is a number of clients for some time.
type phase struct {
	clients int
	length  time.Duration
}

// kind says how a client treats an answer that comes early.
type kind int

const (
	attentive kind = iota // it reads while it sends, and stops sending when it has its answer
	patient               // it reads when it has sent everything
	unsent                // there was none: too many were under way
)

// sample is what became of a request. Times count from the start; -1 for none.
type sample struct {
	due, begun, sent, answered time.Duration
	status                     int
	kind                       kind
}

// recorder keeps samples, and the first errors.
type recorder struct {
	start time.Time

	mu      sync.Mutex // guards what follows
	samples []sample
	errors  []string
}

const mostErrors = 5

func (r *recorder) add(s sample, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.samples = append(r.samples, s)
	if err != nil && len(r.errors) < mostErrors {
		r.errors = append(r.errors, err.Error())
	}
}

func (r *recorder) write(to io.Writer) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	w := bufio.NewWriter(to)
	_, _ = w.WriteString(seconds(time.Duration(r.start.UnixNano())) + "\n") // here, and below, Flush says what is wrong
	for _, s := range r.samples {
		for _, at := range []time.Duration{s.due, s.begun, s.sent, s.answered} {
			_, _ = w.WriteString(seconds(at) + ",")
		}
		_, _ = w.WriteString(strconv.Itoa(s.status) + "," + [...]string{"attentive", "patient", "unsent"}[s.kind] + "\n")
	}
	return w.Flush()
}

func seconds(d time.Duration) string {
	if d < 0 {
		return "-1"
	}
	return strconv.FormatFloat(d.Seconds(), 'f', 6, 64)
}

// openLoop sends requests at random times, independent of each other, so many in a second on average.
func openLoop(ctx context.Context, o *options, c *client, r *recorder) {
	var running sync.WaitGroup
	defer running.Wait()
	places := make(chan struct{}, o.most)
	random := rand.New(rand.NewPCG(1, 2)) //nolint:gosec // the same times in each run
	timer := time.NewTimer(0)
	defer timer.Stop()
	var next time.Duration
	for n := 1; ; n++ {
		next += time.Duration(random.ExpFloat64() / o.rate * float64(time.Second))
		due := next
		if due >= o.length {
			return
		}
		if wait := due - time.Since(r.start); wait > 0 {
			timer.Reset(wait)
			<-timer.C
		}
		select {
		case places <- struct{}{}:
		default:
			r.add(sample{due: due, begun: -1, sent: -1, answered: -1, kind: unsent}, fmt.Errorf("%d requests are under way", o.most))
			continue
		}
		how := attentive
		if o.patient > 0 && n%o.patient == 0 {
			how = patient
		}
		running.Go(func() {
			c.ask(ctx, due, how, r)
			<-places
		})
	}
}

// closedLoop has clients that send the next request when they have the answer to the last one, in each phase as many as it says.
func closedLoop(ctx context.Context, o *options, c *client, r *recorder) {
	var running sync.WaitGroup
	defer running.Wait()
	most := 0
	for _, p := range o.phases {
		most = max(most, p.clients)
	}
	for n := range most {
		running.Go(func() {
			var begin time.Duration
			for _, p := range o.phases {
				end := begin + p.length
				if n < p.clients {
					wait(begin - time.Since(r.start))
					for now := time.Since(r.start); now < end; now = time.Since(r.start) {
						c.ask(ctx, now, patient, r)
					}
				}
				begin = end
			}
		})
	}
}

func wait(d time.Duration) {
	if d > 0 {
		<-time.After(d)
	}
}

// parsePhases reads "CLIENTS:TIME,CLIENTS:TIME".
func parsePhases(text string) ([]phase, error) {
	var all []phase
	for part := range strings.SplitSeq(text, ",") {
		clients, length, _ := strings.Cut(part, ":")
		n, err := strconv.Atoi(clients)
		if err != nil || n < 1 {
			return nil, fmt.Errorf("%q: a phase is a number of clients and a time, as 64:10s", part)
		}
		d, err := time.ParseDuration(length)
		if err != nil {
			return nil, fmt.Errorf("%q: a phase is a number of clients and a time, as 64:10s", part)
		}
		all = append(all, phase{n, d})
	}
	return all, nil
}

func run() error {
	o := &options{}
	var phases string
	flag.StringVar(&o.addr, "addr", "127.0.0.1:8080", "host and port")
	flag.StringVar(&o.path, "path", "/", "what is asked for")
	flag.IntVar(&o.bytes, "bytes", 1, "bytes of a body")
	flag.Float64Var(&o.rate, "rate", 0, "requests in a second, whether or not answers come")
	flag.DurationVar(&o.length, "time", 10*time.Second, "with -rate: for how long")
	flag.IntVar(&o.patient, "patient", 0, "with -rate: every so many-th request is sent whole before its answer is read; 0 for none")
	flag.StringVar(&phases, "clients", "1:10s", "without -rate: how many clients, and for how long, as 1:10s,64:30s")
	flag.DurationVar(&o.limit, "limit", 30*time.Second, "on one request")
	flag.IntVar(&o.most, "most", 2000, "with -rate: requests at the same time")
	flag.Parse()
	var err error
	if o.phases, err = parsePhases(phases); err != nil {
		return err
	}
	c, err := newClient(o)
	if err != nil {
		return err
	}
	defer c.close()
	r := &recorder{start: time.Now()}
	if o.rate > 0 {
		openLoop(context.Background(), o, c, r)
	} else {
		closedLoop(context.Background(), o, c, r)
	}
	for _, e := range r.errors {
		fmt.Fprintln(os.Stderr, e)
	}
	return r.write(os.Stdout)
}

// sources are the addresses that connections come from, so that no port is short: all of 127.0.0.0/8 is this machine.
const sources = 32

func source(n uint64) *net.TCPAddr { return &net.TCPAddr{IP: net.IPv4(127, 0, 0, byte(2+n%sources))} }

func main() {
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, "load:", err)
		os.Exit(1)
	}
}
