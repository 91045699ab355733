// Package pipeline says what an ensemble is: models as steps, and the values that go from one to the next.
package pipeline

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"
)

// Runtime is the runtime of models that are an ensemble; no manifest can name it.
const Runtime = "ensemble"

// Definition is an ensemble: a graph whose edges are values with names. It is not changed once it was checked.
type Definition struct {
	// MaxBatch is how many rows a request may have; 0: there is no dimension for rows.
	MaxBatch int
	// Inputs are what clients give, and Outputs what they get. Nil: all that no step gives, and all that no step takes.
	Inputs, Outputs []Port
	Steps           []Step
	// Whole says that requests and answers go through as they are, as in TorchServe's workflows, and not as tensors: a value is the body of an answer.
	Whole bool
}

// Port is a tensor that an ensemble takes or gives.
type Port struct {
	Name     string
	DataType string  // in the words of the Open Inference Protocol; "": what the steps say
	Shape    []int64 // with the dimension of the rows; -1 for any size. Nil: what the steps say
}

// Step is one model of an ensemble.
type Step struct {
	Name    string // for messages; "": the model's
	Model   string
	Version string // "": the model's default one
	// Inputs has the values by the model's own names of its inputs, Outputs those by the names of its outputs. An output that is not in it is dropped.
	// In an ensemble of whole requests the names of inputs are those of a request's parts, "" standing for all parts as they came, and the one output is "".
	Inputs, Outputs map[string]string
	// Timeout bounds one run of the step, and Retries is how often it is run again after an error; 0 for none of both.
	Timeout time.Duration
	Retries int
}

// Title is what messages call the step.
func (s *Step) Title() string { return cmp.Or(s.Name, s.Model) }

// Checked gives the definition with the inputs and outputs that it leaves out, or says what is wrong with it, without a look at the models.
func (d *Definition) Checked() (*Definition, error) {
	c := *d
	if len(c.Steps) == 0 {
		return nil, errors.New("the ensemble has no steps")
	}
	if c.MaxBatch < 0 {
		return nil, fmt.Errorf("the largest batch is %d, and cannot be negative", c.MaxBatch)
	}
	givers, err := c.givers()
	if err != nil {
		return nil, err
	}
	takers, err := c.takers()
	if err != nil {
		return nil, err
	}
	if c.Inputs == nil {
		c.Inputs = missing(takers, givers)
	}
	if c.Outputs == nil {
		c.Outputs = missing(givers, takers)
	}
	if err := c.checkPorts(givers, takers); err != nil {
		return nil, err
	}
	if c.Whole {
		if err := c.checkWhole(); err != nil {
			return nil, err
		}
	}
	return &c, c.checkOrder(givers)
}

// checkWhole looks at what only ensembles of whole requests have to keep to.
func (d *Definition) checkWhole() error {
	if len(d.Inputs) != 1 {
		return fmt.Errorf("an ensemble of whole requests has one input, the request, and this one has %d", len(d.Inputs))
	}
	for i := range d.Steps {
		s := &d.Steps[i]
		if _, one := s.Outputs[""]; !one || len(s.Outputs) != 1 {
			return fmt.Errorf("step %s: in an ensemble of whole requests a step has one output, the body of its answer", d.place(i))
		}
		if value, request := s.Inputs[""]; request && value != d.Inputs[0].Name {
			return fmt.Errorf("step %s: only the client's request can be taken with all its parts, and %q is an answer", d.place(i), value)
		}
	}
	return nil
}

// givers finds the step that gives each value.
func (d *Definition) givers() (map[string]int, error) {
	givers := map[string]int{}
	for i := range d.Steps {
		s := &d.Steps[i]
		switch {
		case s.Model == "":
			return nil, fmt.Errorf("step %d names no model", i+1)
		case len(s.Inputs) == 0:
			return nil, fmt.Errorf("step %s takes nothing: it needs at least one input", d.place(i))
		case len(s.Outputs) == 0:
			return nil, fmt.Errorf("step %s gives nothing: it needs at least one output", d.place(i))
		}
		for _, name := range slices.Sorted(maps.Keys(s.Outputs)) {
			value := s.Outputs[name]
			if value == "" {
				return nil, fmt.Errorf("step %s: its output %q goes to a tensor without a name", d.place(i), name)
			}
			if other, twice := givers[value]; twice {
				return nil, fmt.Errorf("the tensor %q is given twice, by the steps %s and %s", value, d.place(other), d.place(i))
			}
			givers[value] = i
		}
	}
	return givers, nil
}

// takers finds a step that takes each value.
func (d *Definition) takers() (map[string]int, error) {
	takers := map[string]int{}
	for i := range d.Steps {
		for _, name := range slices.Sorted(maps.Keys(d.Steps[i].Inputs)) {
			value := d.Steps[i].Inputs[name]
			if value == "" {
				return nil, fmt.Errorf("step %s: its input %q comes from a tensor without a name", d.place(i), name)
			}
			if _, seen := takers[value]; !seen {
				takers[value] = i
			}
		}
	}
	return takers, nil
}

// missing lists what is in one and not in the other, in the order of the steps.
func missing(from, in map[string]int) []Port {
	ports := []Port{}
	names := slices.SortedFunc(maps.Keys(from), func(a, b string) int { return cmp.Or(cmp.Compare(from[a], from[b]), cmp.Compare(a, b)) })
	for _, name := range names {
		if _, there := in[name]; !there {
			ports = append(ports, Port{Name: name})
		}
	}
	return ports
}

// checkPorts compares what clients give and get with what the steps take and give.
func (d *Definition) checkPorts(givers, takers map[string]int) error {
	given := map[string]bool{}
	for _, p := range d.Inputs {
		by, clash := givers[p.Name]
		_, taken := takers[p.Name]
		switch {
		case p.Name == "":
			return errors.New("an input of the ensemble has no name")
		case given[p.Name]:
			return fmt.Errorf("the ensemble has two inputs named %q", p.Name)
		case clash:
			return fmt.Errorf("the tensor %q is an input of the ensemble, and step %s gives it, too", p.Name, d.place(by))
		case !taken:
			return fmt.Errorf("no step takes the ensemble's input %q", p.Name)
		}
		given[p.Name] = true
	}
	if len(d.Inputs) == 0 {
		return errors.New("the ensemble has no inputs: each tensor that a step takes is given by another one")
	}
	for _, name := range slices.Sorted(maps.Keys(takers)) {
		if _, made := givers[name]; !made && !given[name] {
			return fmt.Errorf("step %s takes the tensor %q, which is neither an input of the ensemble nor given by a step", d.place(takers[name]), name)
		}
	}
	wanted := map[string]bool{}
	for _, p := range d.Outputs {
		if _, made := givers[p.Name]; !made {
			return fmt.Errorf("no step gives the ensemble's output %q", p.Name)
		}
		if wanted[p.Name] {
			return fmt.Errorf("the ensemble has two outputs named %q", p.Name)
		}
		wanted[p.Name] = true
	}
	if len(d.Outputs) == 0 {
		return errors.New("the ensemble has no outputs: each tensor that a step gives is taken by another one")
	}
	for _, name := range slices.Sorted(maps.Keys(givers)) {
		if _, taken := takers[name]; !taken && !wanted[name] {
			return fmt.Errorf("step %s gives the tensor %q, which nothing takes: map it to an output of the ensemble, or leave it out", d.place(givers[name]), name)
		}
	}
	return nil
}

// checkOrder finds circles.
func (d *Definition) checkOrder(givers map[string]int) error {
	const unseen, open, closed = 0, 1, 2
	state := make([]int, len(d.Steps))
	var path []int
	var visit func(i int) error
	visit = func(i int) error {
		state[i] = open
		path = append(path, i)
		for _, name := range slices.Sorted(maps.Keys(d.Steps[i].Inputs)) {
			from, made := givers[d.Steps[i].Inputs[name]]
			if !made || state[from] == closed {
				continue
			}
			if state[from] == open {
				return fmt.Errorf("the steps go in a circle: %s", d.circle(path[slices.Index(path, from):]))
			}
			if err := visit(from); err != nil {
				return err
			}
		}
		state[i] = closed
		path = path[:len(path)-1]
		return nil
	}
	for i := range d.Steps {
		if state[i] == unseen {
			if err := visit(i); err != nil {
				return err
			}
		}
	}
	return nil
}

// circle shows steps that wait for each other; each waits for the next one.
func (d *Definition) circle(path []int) string {
	names := make([]string, 0, len(path)+1)
	for _, i := range path {
		names = append(names, d.place(i))
	}
	slices.Reverse(names)
	return strings.Join(append(names, names[0]), " → ")
}

// place is what messages call a step: its number and its title.
func (d *Definition) place(i int) string { return strconv.Itoa(i+1) + " (" + d.Steps[i].Title() + ")" }

// Models lists the models of an ensemble, each once, in the order of the steps.
func (d *Definition) Models() []string {
	var names []string
	for i := range d.Steps {
		if !slices.Contains(names, d.Steps[i].Model) {
			names = append(names, d.Steps[i].Model)
		}
	}
	return names
}
