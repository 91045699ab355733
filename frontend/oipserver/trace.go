package oipserver

import (
	"encoding/json"
	"maps"
	"math"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/flambeau-serve/flambeau/frontend/dispatch"
	"github.com/flambeau-serve/flambeau/internal/fault"
	"github.com/flambeau-serve/flambeau/internal/infer"
)

// TraceSettings are what is traced, in Triton's words: numbers are texts.
type TraceSettings struct {
	Level     []string `json:"trace_level"`
	Rate      string   `json:"trace_rate"`
	Count     string   `json:"trace_count"`
	Frequency string   `json:"log_frequency"`
	File      string   `json:"trace_file"`
	Mode      string   `json:"trace_mode"`
}

// The values of trace settings.
const (
	levelOff        = "OFF"
	levelTimestamps = "TIMESTAMPS"
	modeTriton      = "triton"
	defaultRate     = 1000
	unlimited       = -1
)

// tracing is what of the requests of a scope is traced.
type tracing struct {
	timestamps bool
	rate       int64 // one of so many requests
	count      int64 // so many requests from now on; -1 without an end
	frequency  int64 // traces in one file; 0 for one file for all
}

// scope has the settings of a model, or of all models that have none.
type scope struct {
	set  tracing
	own  map[string]bool // settings that are this model's; others are those of all models
	seen int64           // requests since the last one that was traced
}

// tracer decides which requests are traced, and holds those that run.
type tracer struct {
	file   string // "" when nothing can be traced
	writer *traceWriter

	active atomic.Bool // whether any scope traces: most servers never look further

	mu      sync.Mutex // guards what follows
	all     scope
	models  map[string]*scope
	last    int64             // number of the latest trace
	running map[string]*trace // by the identifiers of their requests
}

// trace is one request that is traced.
type trace struct {
	number    int64
	ref       infer.ModelRef
	id        string // that the client gave
	frequency int64
	events    []traceEvent
	seen      dispatch.Observation
	at        time.Time // when seen was told
}

type traceEvent struct {
	Name string `json:"name"`
	NS   int64  `json:"ns"` // since 1970
}

func newTracer(file string, writer *traceWriter) *tracer {
	return &tracer{
		file: file, writer: writer, models: map[string]*scope{}, running: map[string]*trace{},
		all: scope{set: tracing{rate: defaultRate, count: unlimited}},
	}
}

// TraceSettings says what is traced of a model, or of all that have no settings of their own for "".
func (s *Server) TraceSettings(model string) TraceSettings {
	t := s.tracer
	t.mu.Lock()
	defer t.mu.Unlock()
	set := t.all.set
	if own := t.models[model]; own != nil {
		set = own.set
	}
	shown := TraceSettings{
		Level: []string{levelOff}, Rate: strconv.FormatInt(set.rate, 10), Count: strconv.FormatInt(set.count, 10),
		Frequency: strconv.FormatInt(set.frequency, 10), File: t.file, Mode: modeTriton,
	}
	if set.timestamps {
		shown.Level = []string{levelTimestamps}
	}
	return shown
}

// ChangeTrace changes what is traced of a model, or for "" of all that have no settings of their own. A setting of null is the one that the server started
// with, and for a model that of all models.
func (s *Server) ChangeTrace(model string, changes map[string]json.RawMessage) error {
	t := s.tracer
	s.forgetTraces()
	t.mu.Lock()
	defer t.mu.Unlock()
	next := scope{set: t.all.set, own: map[string]bool{}}
	base := tracing{rate: defaultRate, count: unlimited}
	was := t.all.set
	if model != "" {
		base = t.all.set
		if own := t.models[model]; own != nil {
			next.set, next.own, was = own.set, maps.Clone(own.own), own.set
		}
	}
	for _, name := range slices.Sorted(maps.Keys(changes)) {
		if err := t.change(&next.set, base, name, changes[name]); err != nil {
			return err
		}
		if isNull(changes[name]) {
			delete(next.own, name)
		} else {
			next.own[name] = true
		}
	}
	if next.set != was {
		if err := s.mayChange("trace settings"); err != nil {
			return err
		}
	}
	t.apply(model, next)
	return nil
}

// apply makes settings those of a model, or of all; mu is held.
func (t *tracer) apply(model string, next scope) {
	switch {
	case model == "":
		t.all.set, t.all.seen = next.set, 0
		for _, m := range t.models {
			m.inherit(next.set)
		}
	case len(next.own) == 0:
		delete(t.models, model)
	default:
		t.models[model] = &next
	}
	t.activate()
}

// activate notes whether any scope traces; mu is held.
func (t *tracer) activate() {
	active := t.all.set.timestamps
	for _, m := range t.models {
		active = active || m.set.timestamps
	}
	t.active.Store(active)
}

// forgetTraces drops the settings of models that are not there any more.
func (s *Server) forgetTraces() {
	t := s.tracer
	t.mu.Lock()
	names := slices.Collect(maps.Keys(t.models))
	t.mu.Unlock()
	names = slices.DeleteFunc(names, func(name string) bool { // without the lock: the models have one of their own
		_, err := s.opts.Models.DescribeAll(name)
		return !fault.Is(err, fault.ModelNotFound)
	})
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, name := range names {
		delete(t.models, name)
	}
	t.activate()
}

// inherit takes over what is not the model's own.
func (s *scope) inherit(all tracing) {
	for name, take := range map[string]func(){
		"trace_level": func() { s.set.timestamps = all.timestamps }, "trace_rate": func() { s.set.rate = all.rate },
		"trace_count": func() { s.set.count = all.count }, "log_frequency": func() { s.set.frequency = all.frequency },
	} {
		if !s.own[name] {
			take()
		}
	}
}

// change changes one setting.
func (t *tracer) change(set *tracing, base tracing, name string, value json.RawMessage) error {
	isSet := !isNull(value)
	whole := func(of *int64, before, least int64) error {
		if !isSet {
			*of = before
			return nil
		}
		n, err := number(name, value)
		if err != nil {
			return err
		}
		if n < least || n > math.MaxInt32 {
			return fault.Newf(fault.BadRequest, "the setting '%s' is %d, and has to be at least %d and at most %d", name, n, least, math.MaxInt32)
		}
		*of = n
		return nil
	}
	switch name {
	case "trace_level":
		if !isSet {
			set.timestamps = base.timestamps
			return nil
		}
		var err error
		set.timestamps, err = t.level(value)
		return err
	case "trace_rate":
		return whole(&set.rate, base.rate, 1)
	case "trace_count":
		return whole(&set.count, base.count, unlimited)
	case "log_frequency":
		return whole(&set.frequency, base.frequency, 0)
	case "trace_file":
		if is, err := oneText(name, value); isSet && (err != nil || is != t.file) {
			return fault.New(fault.BadRequest, "trace file location can not be updated through network protocol; it is set by trace_file when the server is started", nil)
		}
		return nil
	case "trace_mode":
		if is, err := oneText(name, value); isSet && (err != nil || is != modeTriton) {
			return fault.New(fault.BadRequest, "the setting 'trace_mode' is \"triton\" on this server, and cannot be changed", nil)
		}
		return nil
	}
	return fault.Newf(fault.BadRequest, "there is no trace setting '%.100s'", name)
}

func (t *tracer) level(value json.RawMessage) (timestamps bool, err error) {
	all, err := texts("trace_level", value)
	if err != nil {
		return false, err
	}
	for _, level := range all {
		switch level {
		case levelOff:
		case levelTimestamps:
			timestamps = true
		case "TENSORS":
			return false, fault.New(fault.BadRequest, "the trace level TENSORS is not offered by this server: it would write what clients send into a file; TIMESTAMPS is", nil)
		default:
			return false, fault.Newf(fault.BadRequest, "there is no trace level '%.40s'; OFF and TIMESTAMPS are", level)
		}
	}
	if timestamps && t.file == "" {
		f := fault.New(fault.BadRequest, "Attempting to set invalid trace setting: trace file name is not given", nil)
		f.Hint = "Start the server with trace_file=FILE; requests can be traced then."
		return false, f
	}
	return timestamps, nil
}

// Trace begins to trace a request, if it is one of those that are. The function must be called when it was answered.
func (s *Server) Trace(ref infer.ModelRef, call *Call) (end func()) {
	t := s.tracer
	if !t.active.Load() {
		return func() {}
	}
	began := time.Now()
	d, err := s.opts.Models.Describe(ref)
	if err != nil {
		return func() {}
	}
	one := t.begin(d.Ref, call.ID)
	if one == nil {
		return func() {}
	}
	if call.Request != nil {
		one.id = call.Request.ID
	}
	if !call.Came.IsZero() {
		one.add(call.Front+"_START", call.Came)
		one.add(call.Front+"_END", began)
	}
	one.add("REQUEST_START", began)
	return func() { t.end(one, call.ID) }
}

func (e *trace) add(name string, at time.Time) {
	e.events = append(e.events, traceEvent{name, at.UnixNano()})
}

// begin gives a trace if the request is to be traced.
func (t *tracer) begin(ref infer.ModelRef, id string) *trace {
	t.mu.Lock()
	defer t.mu.Unlock()
	s := t.models[ref.Name]
	if s == nil {
		s = &t.all
	}
	if !s.set.timestamps || s.set.count == 0 || t.running[id] != nil {
		return nil
	}
	if s.seen++; s.seen < s.set.rate {
		return nil
	}
	s.seen = 0
	if s.set.count > 0 {
		s.set.count--
	}
	t.last++
	one := &trace{number: t.last, ref: ref, frequency: s.set.frequency}
	t.running[id] = one
	return one
}

// Observed is told of each request that the dispatcher has answered, before its client is.
func (s *Server) Observed(o dispatch.Observation) {
	t := s.tracer
	if !t.active.Load() {
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if one := t.running[o.ID]; one != nil {
		one.seen, one.at = o, time.Now()
	}
}

// end writes a trace.
func (t *tracer) end(one *trace, id string) {
	now := time.Now()
	t.mu.Lock()
	delete(t.running, id)
	t.mu.Unlock()
	if o := &one.seen; o.ID != "" { // the queue has had it
		arrived := one.at.Add(-o.Total)
		one.add("QUEUE_START", arrived)
		if o.Times.Ran > 0 {
			ran := arrived.Add(o.Times.Queued)
			one.add("COMPUTE_START", ran)
			one.add("COMPUTE_INPUT_END", ran) // inputs and outputs are made in the worker, within its time
			one.add("COMPUTE_OUTPUT_START", ran.Add(o.Times.Ran))
			one.add("COMPUTE_END", ran.Add(o.Times.Ran))
		}
	}
	one.add("REQUEST_END", now)
	if t.writer != nil {
		t.writer.put(one)
	}
}

// json is the trace as Triton writes it: an object that says which request it is, and one with its timestamps.
func (e *trace) json() ([]byte, error) {
	about := struct {
		ID      int64           `json:"id"`
		Model   string          `json:"model_name"`
		Version json.RawMessage `json:"model_version"`
		Request string          `json:"request_id,omitempty"`
	}{ID: e.number, Model: e.ref.Name, Request: e.id}
	if _, err := strconv.ParseInt(e.ref.Version, 10, 64); err == nil && e.ref.Version[0] != '0' {
		about.Version = json.RawMessage(e.ref.Version)
	} else if about.Version, err = json.Marshal(e.ref.Version); err != nil {
		return nil, err
	}
	head, err := json.Marshal(about)
	if err != nil {
		return nil, err
	}
	tail, err := json.Marshal(struct {
		ID         int64        `json:"id"`
		Timestamps []traceEvent `json:"timestamps"`
	}{e.number, e.events})
	return append(append(head, ','), tail...), err
}
