package httpapi

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/flambeau-serve/flambeau/internal/fault"
	"github.com/flambeau-serve/flambeau/internal/infer"
	"github.com/flambeau-serve/flambeau/modelstore/rollout"
	"github.com/flambeau-serve/flambeau/plugins/backend"
)

// fakeModels is a model store in memory. Registering knows the archives by name only.
type fakeModels struct {
	mu       sync.Mutex
	archives map[string]infer.ModelRef
	models   []*rollout.Description
	startup  []string
	next     int
	sick     bool
	specs    []rollout.Spec
	onWork   func(ctx context.Context) // called within Register and Scale
}

func newFakeModels(startup ...string) *fakeModels {
	f := &fakeModels{archives: map[string]infer.ModelRef{}, next: 9000, startup: startup}
	for _, name := range []string{"echo", "kinds", "ctxinfo", "respond", "faults", "describer", "badload", "wf_node", "slowload", "streamer", "batcher"} {
		f.archives[name+".mar"] = infer.ModelRef{Name: name, Version: "1.0"}
	}
	f.archives["echo_v2.mar"] = infer.ModelRef{Name: "echo", Version: "2.0"}
	for _, name := range startup {
		f.add(name)
		f.models[len(f.models)-1].LoadedAtStartup = true
	}
	return f
}

// add registers a model with one worker.
func (f *fakeModels) add(name string) {
	if _, err := f.Register(context.Background(), rollout.Spec{URL: name + ".mar"}); err != nil {
		panic(err)
	}
	f.specs = nil
}

func (f *fakeModels) Register(ctx context.Context, spec rollout.Spec) (rollout.Registered, error) {
	if f.onWork != nil {
		f.onWork(ctx)
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.specs = append(f.specs, spec)
	ref, ok := f.archives[spec.URL[strings.LastIndexByte(spec.URL, '/')+1:]]
	switch {
	case strings.Contains(spec.URL, ".."):
		return rollout.Registered{}, fault.Newf(fault.ModelNotFound, "Relative path is not allowed in url: %s", spec.URL)
	case !ok:
		return rollout.Registered{}, fault.Newf(fault.ModelNotFound, "Model not found at: %s", spec.URL)
	}
	if spec.Name != "" {
		ref.Name = spec.Name
	}
	if f.find(ref) != nil {
		return rollout.Registered{}, fault.Newf(fault.Conflict, "Model version %s is already registered for model %s", ref.Version, ref.Name)
	}
	d := &rollout.Description{
		Ref: ref, URL: spec.URL, Address: spec.URL, Runtime: "python", BatchSize: 1, MaxBatchDelay: 100 * time.Millisecond, ResponseTimeout: 120 * time.Second,
		StartupTimeout: 120 * time.Second, MaxRetryTimeout: 300 * time.Second, DeviceType: "cpu", QueueSize: 100,
	}
	if spec.Runtime != "" {
		d.Runtime = spec.Runtime
	}
	set(&d.BatchSize, spec.BatchSize)
	set(&d.MaxBatchDelay, spec.MaxBatchDelay)
	set(&d.ResponseTimeout, spec.ResponseTimeout)
	set(&d.StartupTimeout, spec.StartupTimeout)
	workers := 1
	set(&workers, spec.InitialWorkers)
	workers = max(workers, 0)
	d.Default = f.find(infer.ModelRef{Name: ref.Name}) == nil
	f.models = append(f.models, d)
	f.resize(d, workers, workers)
	return rollout.Registered{Ref: ref, Workers: workers}, nil
}

func set[T any](into, from *T) {
	if from != nil {
		*into = *from
	}
}

func (f *fakeModels) resize(d *rollout.Description, minimum, maximum int) {
	d.MinWorkers, d.MaxWorkers = minimum, maximum
	for len(d.Workers) < minimum {
		d.Workers = append(d.Workers, rollout.Worker{ID: f.next, StartTime: time.Unix(1e9, 5e6), Ready: true, PID: 42, GPU: backend.NoGPU})
		f.next++
	}
	d.Workers = d.Workers[:min(len(d.Workers), maximum)]
}

// find gives a version, the default one when none is asked for; nil if there is none.
func (f *fakeModels) find(ref infer.ModelRef) *rollout.Description {
	for _, d := range f.models {
		if d.Ref.Name == ref.Name && (d.Ref.Version == ref.Version || ref.Version == "" && d.Default) {
			return d
		}
	}
	return nil
}

func (f *fakeModels) get(ref infer.ModelRef) (*rollout.Description, error) {
	if f.find(infer.ModelRef{Name: ref.Name}) == nil {
		return nil, fault.Newf(fault.ModelNotFound, "Model not found: %s", ref.Name)
	}
	d := f.find(ref)
	if d == nil {
		return nil, fault.Newf(fault.VersionNotFound, "Model version: %s does not exist for model: %s", ref.Version, ref.Name)
	}
	return d, nil
}

func (f *fakeModels) Scale(ctx context.Context, ref infer.ModelRef, minimum, maximum int, synchronous bool) error {
	if f.onWork != nil {
		f.onWork(ctx)
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	d, err := f.get(ref)
	if err != nil {
		return err
	}
	if ref.Name == "badload" && synchronous && minimum > 0 {
		version := ref.Version
		if version == "" {
			version = "null"
		}
		return fault.Newf(fault.LoadFailed, "Failed to start workers for model %s version: %s", ref.Name, version)
	}
	f.resize(d, minimum, maximum)
	return nil
}

func (f *fakeModels) Unregister(_ context.Context, ref infer.ModelRef) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	d, err := f.get(ref)
	if err != nil {
		return err
	}
	others := slices.ContainsFunc(f.models, func(o *rollout.Description) bool { return o != d && o.Ref.Name == d.Ref.Name })
	if d.Default && others {
		return fault.Newf(fault.InvalidVersion, "Cannot remove default version for model %s", ref.Name)
	}
	f.models = slices.DeleteFunc(f.models, func(o *rollout.Description) bool { return o == d })
	return nil
}

func (f *fakeModels) SetDefault(_ context.Context, ref infer.ModelRef) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if _, err := f.get(infer.ModelRef{Name: ref.Name}); err != nil {
		return err
	}
	d := f.find(ref)
	if d == nil {
		return fault.Newf(fault.VersionNotFound, "Model version %s does not exist for model %s", ref.Version, ref.Name)
	}
	for _, o := range f.models {
		if o.Ref.Name == ref.Name {
			o.Default = o == d
		}
	}
	return nil
}

func (f *fakeModels) List() []rollout.Listed {
	f.mu.Lock()
	defer f.mu.Unlock()
	var all []rollout.Listed
	for _, d := range f.models {
		if d.Default {
			all = append(all, rollout.Listed{Name: d.Ref.Name, URL: d.URL})
		}
	}
	slices.SortFunc(all, func(x, y rollout.Listed) int { return strings.Compare(x.Name, y.Name) })
	return all
}

func (f *fakeModels) Describe(ref infer.ModelRef) (rollout.Description, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	d, err := f.get(ref)
	if err != nil {
		return rollout.Description{}, err
	}
	return *d, nil
}

func (f *fakeModels) DescribeAll(name string) ([]rollout.Description, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if _, err := f.get(infer.ModelRef{Name: name}); err != nil {
		return nil, err
	}
	var all []rollout.Description
	for _, d := range f.models {
		if d.Ref.Name == name {
			all = append(all, *d)
		}
	}
	return all, nil
}

func (f *fakeModels) StartupModels() []string { return f.startup }
func (f *fakeModels) Healthy() bool           { return !f.sick }

// fakePredictor runs handlers that stand for the Python ones.
type fakePredictor struct {
	models  *fakeModels
	handler func(ctx context.Context, ref infer.ModelRef, item infer.Item) (infer.Result, error) // nil: by the model's archive

	waiting int                                                         // in each queue
	refuse  func(ref infer.ModelRef, item infer.Item, size int64) error // nil: nothing is refused before its body has come

	mu   sync.Mutex
	seen []infer.Item
	refs []infer.ModelRef
}

func (p *fakePredictor) Queue(infer.ModelRef) (waiting, capacity int, err error) {
	return p.waiting, 100, nil
}

func (p *fakePredictor) Refuse(_ context.Context, ref infer.ModelRef, item infer.Item, size int64) error {
	if p.refuse == nil {
		return nil
	}
	return p.refuse(ref, item, size)
}

func (p *fakePredictor) Submit(ctx context.Context, ref infer.ModelRef, item infer.Item) (infer.Result, error) {
	d, err := p.models.Describe(ref)
	if err != nil {
		return infer.Result{}, err
	}
	p.mu.Lock()
	p.seen, p.refs = append(p.seen, item), append(p.refs, ref)
	p.mu.Unlock()
	if len(d.Workers) == 0 {
		return infer.Result{}, fault.New(fault.NoWorker, "no workers", nil)
	}
	if p.handler != nil {
		return p.handler(ctx, ref, item)
	}
	switch base := strings.TrimSuffix(d.URL, ".mar"); base {
	case "kinds":
		return infer.Result{Body: []byte("7")}, nil
	case "respond":
		return respond(item)
	case "faults":
		return faults(item)
	case "ctxinfo":
		return infer.Result{Body: jsonOf(headersSeen(item))}, nil
	case "describer":
		return describer(item)
	}
	return infer.Result{Body: echo(item)}, nil
}

func header(item infer.Item, name string) string {
	for _, f := range slices.Backward(item.Header) {
		if f.Name == name {
			return f.Value
		}
	}
	return ""
}

func bodyOf(item infer.Item) string {
	text, _ := textOf(item.Parts, "body")
	return text
}

func jsonOf(v any) []byte {
	text, err := prettyJSON(v)
	if err != nil {
		panic(err)
	}
	return bytes.TrimSpace(text)
}

// echo reports what the row of a request holds, as the Python worker decodes it.
func echo(item infer.Item) []byte {
	row := map[string]any{}
	for _, p := range item.Parts {
		var v any
		switch {
		case p.ContentType == "application/json" && json.Unmarshal(p.Data, &v) == nil:
			row[p.Name] = map[string]any{"type": pythonType(v), "value": json.RawMessage(p.Data)}
			continue
		case strings.HasPrefix(p.ContentType, "text") && string(p.Data) == strings.ToValidUTF8(string(p.Data), ""):
			row[p.Name] = map[string]any{"type": "str", "value": string(p.Data)}
			continue
		}
		shown := map[string]any{"type": "bytearray", "len": len(p.Data)}
		if len(p.Data) <= 4096 {
			runes := make([]rune, len(p.Data))
			for i, b := range p.Data {
				runes[i] = rune(b)
			}
			shown["latin1"] = string(runes)
		}
		row[p.Name] = shown
	}
	return jsonOf(row)
}

func pythonType(v any) string {
	switch v.(type) {
	case map[string]any:
		return "dict"
	case []any:
		return "list"
	case nil:
		return "NoneType"
	}
	return fmt.Sprintf("%T", v)
}

func headersSeen(item infer.Item) map[string]any {
	seen := map[string]any{}
	for _, p := range item.Parts {
		seen[p.Name] = map[string]string{"content-type": p.ContentType}
	}
	for _, f := range item.Header {
		seen[f.Name] = f.Value
	}
	return seen
}

func respond(item infer.Item) (infer.Result, error) {
	var ask struct {
		ContentType *string           `json:"content_type"`
		Status      int               `json:"status"`
		All         int               `json:"all_status"`
		Headers     map[string]string `json:"headers"`
		Return      any               `json:"return"`
	}
	if err := json.Unmarshal([]byte(bodyOf(item)), &ask); err != nil {
		return infer.Result{}, fault.New(fault.BackendDied, "Worker died.", err)
	}
	res := infer.Result{Status: max(ask.Status, ask.All)}
	if ask.ContentType != nil {
		res.Header = append(res.Header, infer.Field{Name: "content-type", Value: *ask.ContentType})
	}
	for name, value := range ask.Headers {
		if strings.ContainsAny(value, "\r\n") {
			return infer.Result{}, fault.New(fault.BackendDied, "Worker died.", nil)
		}
		res.Header = append(res.Header, infer.Field{Name: name, Value: value})
	}
	switch v := ask.Return.(type) {
	case nil:
		res.Body = jsonOf(map[string]bool{"done": true})
	case string:
		res.Body = []byte(v)
	default:
		res.Body = jsonOf(v)
	}
	return res, nil
}

func faults(item infer.Item) (infer.Result, error) {
	command, arg, _ := strings.Cut(bodyOf(item), ":")
	switch command {
	case "pe":
		code, err := strconv.Atoi(arg)
		return infer.Result{}, &fault.Error{Kind: fault.HandlerFailed, Message: "custom message", Code: code, Detail: "Traceback", Cause: err}
	case "keyerror":
		return infer.Result{}, &fault.Error{Kind: fault.HandlerFailed, Message: "Prediction failed", Detail: "KeyError"}
	case "exit":
		return infer.Result{}, fault.New(fault.BackendDied, "Worker died.", nil)
	case "full":
		return infer.Result{}, &fault.Error{Kind: fault.Overloaded, Message: "The queue holds 100 of 100 requests.", Hint: "Raise job_queue_size."}
	case "bug":
		panic("a bug in a handler's stand-in")
	}
	return infer.Result{Body: jsonOf(map[string]string{"ok": bodyOf(item)})}, nil
}

func describer(item infer.Item) (infer.Result, error) {
	if header(item, "describe") != "True" {
		return infer.Result{Body: []byte("explain=" + header(item, "explain") + " describe=None rows=1")}, nil
	}
	res := infer.Result{Body: []byte(`{"doc": "made for conformance", "inputs": 2}`)}
	switch header(item, "x-mode") {
	case "list":
		res.Body = []byte(`["not", "a", "dict"]`)
	case "raise":
		return infer.Result{}, &fault.Error{Kind: fault.HandlerFailed, Message: "Prediction failed"}
	case "ctype":
		res.Header = []infer.Field{{Name: "content-type", Value: "text/plain"}}
	}
	return res, nil
}
