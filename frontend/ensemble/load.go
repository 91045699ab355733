package ensemble

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/flambeau-serve/flambeau/handlersdk/tensor"
	"github.com/flambeau-serve/flambeau/internal/fault"
	"github.com/flambeau-serve/flambeau/internal/infer"
	"github.com/flambeau-serve/flambeau/internal/pipeline"
	"github.com/flambeau-serve/flambeau/plugins/backend"
)

// refOf is the model of a step.
func refOf(s *pipeline.Step) infer.ModelRef { return infer.ModelRef{Name: s.Model, Version: s.Version} }

// await waits until the model of each step is ready, and tells about them. A model that is not registered, or whose start has failed, has the grace time:
// when a store is filled, or the server starts, the ensemble may be the first. Who has waited in vain once has said so, and waits for as long as it takes
// the next time, so that the ensemble is there again as soon as its models are. That is a worker that is started again: an ensemble that is loaded anew,
// which has a folder of its own, says so anew. It tells what it lacks while it waits so, and nil when it need not any more.
func (l *Launcher) await(ctx context.Context, m *backend.LoadSpec, d *pipeline.Definition, tell func(why error)) ([]Member, error) {
	grace := time.NewTimer(l.opts.Grace)
	defer grace.Stop()
	hurried, patient, told := false, l.hasLacked(m), false
	for {
		changed := l.opts.Models.Changed() // before the look, so that nothing is missed
		members, lacking := l.look(d)
		switch {
		case lacking == nil:
			l.setLacked(m, false)
			return members, nil
		case lacking.final:
			return nil, lacking.fault
		case lacking.absent && hurried && !patient:
			l.setLacked(m, true)
			return nil, lacking.fault
		}
		switch {
		case patient && lacking.absent: // requests need not wait with it
			told = true
			tell(lacking.fault)
		case told:
			told = false
			tell(nil)
		}
		select {
		case <-changed:
		case <-grace.C:
			hurried = true
		case <-ctx.Done():
			return nil, fault.New(fault.LoadFailed, lacking.fault.Message, context.Cause(ctx))
		}
	}
}

func (l *Launcher) hasLacked(m *backend.LoadSpec) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	dir, lacked := l.lacked[m.Model]
	return lacked && dir == m.Dir
}

func (l *Launcher) setLacked(m *backend.LoadSpec, lacks bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if lacks {
		l.lacked[m.Model] = m.Dir
	} else {
		delete(l.lacked, m.Model)
	}
}

// lack is why an ensemble cannot be loaded now.
type lack struct {
	fault  *fault.Error
	absent bool // the model is not registered
	final  bool // waiting is of no use
}

// look asks for all the models.
func (l *Launcher) look(d *pipeline.Definition) ([]Member, *lack) {
	members := make([]Member, len(d.Steps))
	for i := range d.Steps {
		s := &d.Steps[i]
		m, err := l.opts.Models.Member(refOf(s))
		switch {
		case fault.Is(err, fault.ModelNotFound, fault.VersionNotFound):
			f := fault.Newf(fault.LoadFailed, "step %d of the ensemble needs the model %s, which is not registered", i+1, refOf(s))
			f.Hint = "register it, or put it into the model store; the ensemble is then tried again"
			return nil, &lack{fault: f, absent: true}
		case err != nil:
			return nil, &lack{fault: fault.New(fault.LoadFailed, fmt.Sprintf("step %d of the ensemble: the model %s", i+1, refOf(s)), err), final: true}
		case !m.Ready:
			f := fault.Newf(fault.LoadFailed, "step %d of the ensemble needs the model %s, which is not ready", i+1, refOf(s))
			if m.Reason != "" {
				f.Message += ": " + m.Reason
			}
			return nil, &lack{fault: f, absent: m.Failed}
		}
		members[i] = m
	}
	return members, nil
}

// plan is an ensemble that can be run.
type plan struct {
	*pipeline.Definition
	name    string
	version string
	most    int                 // rows of a request that the definition allows; 0: it does not say
	takers  map[string][]int    // the steps that wait for a value
	wanted  []bool              // by step: not all that its model gives is wanted
	labels  map[string][]string // names of the classes, by output
}

// claim is what somebody says about a tensor.
type claim struct {
	who   string
	port  backend.Port
	given bool
}

// compile compares a definition with its models, and fills in what it does not say.
func compile(d *pipeline.Definition, ref infer.ModelRef, members []Member) (*plan, error) {
	p := &plan{Definition: d, name: ref.Name, version: ref.Version, most: d.MaxBatch, takers: map[string][]int{}, wanted: make([]bool, len(d.Steps)), labels: map[string][]string{}}
	for i := range d.Steps {
		p.learn(i, members[i].Ports)
		for _, value := range slices.Sorted(maps.Values(d.Steps[i].Inputs)) {
			if !slices.Contains(p.takers[value], i) {
				p.takers[value] = append(p.takers[value], i)
			}
		}
	}
	if d.Whole {
		return p, nil
	}
	if err := enough(d, members); err != nil {
		return nil, err
	}
	claims, err := allClaims(d, members)
	if err != nil {
		return nil, err
	}
	for _, value := range slices.Sorted(maps.Keys(claims)) {
		if err := agree(value, claims[value]); err != nil {
			return nil, err
		}
	}
	c := *d
	c.Inputs, c.Outputs = filled(d.Inputs, claims), filled(d.Outputs, claims)
	if c.MaxBatch == 0 && !stated(d) {
		c.MaxBatch = smallestBatch(members)
	}
	p.Definition = &c
	return p, nil
}

// enough refuses an ensemble that would let in more rows than one of its models takes, as Triton does: such a request would fail in the middle.
func enough(d *pipeline.Definition, members []Member) error {
	for i := range d.Steps {
		p := members[i].Ports
		if p == nil || p.MaxBatch <= 0 || p.MaxBatch >= d.MaxBatch { // a model without a dimension for rows takes what it gets
			continue
		}
		f := fault.Newf(fault.LoadFailed, "the ensemble takes up to %d rows in a request, and step %d, the model %s, only %d", d.MaxBatch, i+1, refOf(&d.Steps[i]), p.MaxBatch)
		f.Hint = "lower the ensemble's max_batch_size (maxBatchSize in model-config.yaml), or raise the model's (max_batch_size in config.pbtxt, or batchSize)"
		return f
	}
	return nil
}

// allClaims collects what the definition and the models say about each tensor.
func allClaims(d *pipeline.Definition, members []Member) (map[string][]claim, error) {
	claims := map[string][]claim{}
	for _, port := range slices.Concat(d.Inputs, d.Outputs) {
		if _, err := tensor.ParseDType(port.DataType); port.DataType != "" && err != nil {
			return nil, refuse("the ensemble's tensor %q: %v", port.Name, err)
		}
		claims[port.Name] = append(claims[port.Name], claim{who: "the ensemble", port: backend.Port{Name: port.Name, DataType: port.DataType, Shape: port.Shape}})
	}
	for i := range d.Steps {
		if err := claimsOf(i, &d.Steps[i], members[i].Ports, claims); err != nil {
			return nil, err
		}
	}
	return claims, nil
}

// learn notes what is of use of what a step's model says about its outputs.
func (p *plan) learn(i int, ports *backend.Description) {
	if ports == nil {
		return
	}
	p.wanted[i] = len(p.Steps[i].Outputs) < len(ports.Outputs)
	for name, value := range p.Steps[i].Outputs {
		if labels := ports.Labels[name]; labels != nil {
			p.labels[value] = labels
		}
	}
}

// stated says whether the definition gives the shape of any of its ports: then it also says whether there are rows.
func stated(d *pipeline.Definition) bool {
	says := func(p pipeline.Port) bool { return p.Shape != nil }
	return slices.ContainsFunc(d.Inputs, says) || slices.ContainsFunc(d.Outputs, says)
}

// smallestBatch is how many rows all the models take, 0 when one of them has no dimension for rows or does not say.
func smallestBatch(members []Member) int {
	least := 0
	for i := range members {
		p := members[i].Ports
		if p == nil || p.MaxBatch <= 0 {
			return 0
		}
		if least == 0 || p.MaxBatch < least {
			least = p.MaxBatch
		}
	}
	return least
}

func refuse(format string, args ...any) error {
	f := fault.Newf(fault.LoadFailed, format, args...)
	f.Hint = "correct the steps of the ensemble, or take a version of the model that fits"
	return f
}

// claimsOf notes what the model of a step says about its tensors, and refuses names that it does not have. One that does not describe itself says nothing.
func claimsOf(i int, s *pipeline.Step, ports *backend.Description, claims map[string][]claim) error {
	if ports == nil {
		return nil
	}
	who := fmt.Sprintf("step %d (%s)", i+1, s.Title())
	for _, side := range []struct {
		word   string
		mapped map[string]string
		has    []backend.Port
		given  bool
	}{{"input", s.Inputs, ports.Inputs, false}, {"output", s.Outputs, ports.Outputs, true}} {
		if len(side.has) == 0 {
			continue
		}
		for _, name := range slices.Sorted(maps.Keys(side.mapped)) {
			at := slices.IndexFunc(side.has, func(p backend.Port) bool { return p.Name == name })
			if at < 0 {
				return refuse("%s: the model has no %s %q; it has %s", who, side.word, name, names(side.has))
			}
			claims[side.mapped[name]] = append(claims[side.mapped[name]], claim{who: who, port: side.has[at], given: side.given})
		}
		if side.given {
			continue
		}
		for _, p := range side.has {
			if _, mapped := side.mapped[p.Name]; !mapped {
				return refuse("%s: nothing is given for the model's input %q", who, p.Name)
			}
		}
	}
	return nil
}

func names(ports []backend.Port) string {
	all := make([]string, len(ports))
	for i, p := range ports {
		all[i] = "'" + p.Name + "'"
	}
	return strings.Join(all, ", ")
}

// agree compares all that is said about one tensor.
func agree(value string, all []claim) error {
	for i := range all {
		for k := range i {
			a, b := &all[k], &all[i]
			if a.port.DataType != "" && b.port.DataType != "" && a.port.DataType != b.port.DataType {
				return refuse("the tensor %q is %s for %s, and %s for %s", value, a.port.DataType, a.who, b.port.DataType, b.who)
			}
			if !fits(a.port.Shape, b.port.Shape) {
				return refuse("the tensor %q has the shape %v for %s, and %v for %s", value, a.port.Shape, a.who, b.port.Shape, b.who)
			}
		}
	}
	return nil
}

// fits says whether a tensor may have both shapes; nil is any.
func fits(a, b []int64) bool {
	if a == nil || b == nil {
		return true
	}
	return slices.EqualFunc(a, b, func(x, y int64) bool { return x < 0 || y < 0 || x == y })
}

// filled completes ports by what is said about them, the giver's word first.
func filled(ports []pipeline.Port, claims map[string][]claim) []pipeline.Port {
	all := slices.Clone(ports)
	for i := range all {
		p := &all[i]
		said := slices.Clone(claims[p.Name])
		slices.SortStableFunc(said, func(a, b claim) int { return rank(a) - rank(b) })
		for _, c := range said {
			if p.DataType == "" {
				p.DataType = c.port.DataType
			}
			if p.Shape == nil {
				p.Shape = c.port.Shape
			}
		}
	}
	return all
}

func rank(c claim) int {
	if c.given {
		return 0
	}
	return 1
}

// description is what the ensemble tells about itself.
func (p *plan) description() *backend.Description {
	d := &backend.Description{Platform: pipeline.Runtime, MaxBatch: p.MaxBatch, Inputs: described(p.Inputs), Outputs: described(p.Outputs), Labels: p.labels, Accepts: p.accepts()}
	for i := range p.Steps {
		s := &p.Steps[i]
		d.Steps = append(d.Steps, backend.Step{Model: s.Model, Version: s.Version, Inputs: maps.Clone(s.Inputs), Outputs: maps.Clone(s.Outputs)})
	}
	return d
}

// accepts are the media types of what /predictions takes.
func (p *plan) accepts() []string {
	if len(p.Inputs) == 1 && p.Inputs[0].DataType == string(tensor.Bytes) {
		return []string{"application/octet-stream", "application/json"}
	}
	return []string{"application/json"}
}

func described(ports []pipeline.Port) []backend.Port {
	all := make([]backend.Port, len(ports))
	for i, p := range ports {
		all[i] = backend.Port{Name: p.Name, DataType: p.DataType, Shape: p.Shape}
		if p.Shape == nil {
			all[i].Shape = []int64{-1}
		}
	}
	return all
}
