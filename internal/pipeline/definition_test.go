package pipeline

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func step(model string, inputs, outputs string) Step {
	pairs := func(text string) map[string]string {
		all := map[string]string{}
		for pair := range strings.SplitSeq(text, " ") {
			if name, value, found := strings.Cut(pair, "="); found {
				all[name] = value
			}
		}
		return all
	}
	return Step{Model: model, Inputs: pairs(inputs), Outputs: pairs(outputs)}
}

func TestCheckedFillsIn(t *testing.T) {
	t.Parallel()
	d := &Definition{Steps: []Step{step("b", "x=t y=B", "o=Z"), step("a", "x=A", "y=t p=Q"), step("a", "x=A", "y=C")}}
	c, err := d.Checked()
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]Port{{Name: "B"}, {Name: "A"}}, c.Inputs); diff != "" {
		t.Error("inputs", diff)
	}
	if diff := cmp.Diff([]Port{{Name: "Z"}, {Name: "Q"}, {Name: "C"}}, c.Outputs); diff != "" {
		t.Error("outputs", diff)
	}
	if d.Inputs != nil {
		t.Error("the definition itself was changed")
	}
	if diff := cmp.Diff([]string{"b", "a"}, c.Models()); diff != "" {
		t.Error(diff)
	}
}

func TestCheckedRefuses(t *testing.T) {
	t.Parallel()
	in, out := []Port{{Name: "A"}}, []Port{{Name: "Z"}}
	for name, c := range map[string]struct {
		d    Definition
		want string
	}{
		"no steps":      {Definition{}, "no steps"},
		"negative":      {Definition{MaxBatch: -1, Steps: []Step{step("a", "x=A", "y=Z")}}, "negative"},
		"no model":      {Definition{Steps: []Step{step("", "x=A", "y=Z")}}, "step 1 names no model"},
		"no inputs":     {Definition{Steps: []Step{step("a", "", "y=Z")}}, "takes nothing"},
		"no outputs":    {Definition{Steps: []Step{step("a", "x=A", "")}}, "gives nothing"},
		"nameless":      {Definition{Steps: []Step{step("a", "x=A", "y=")}}, "without a name"},
		"nameless in":   {Definition{Steps: []Step{step("a", "x=", "y=Z")}}, "without a name"},
		"twice":         {Definition{Steps: []Step{step("a", "x=A", "y=Z"), step("b", "x=A", "y=Z")}}, "given twice, by the steps 1 (a) and 2 (b)"},
		"given input":   {Definition{Inputs: []Port{{Name: "Z"}}, Steps: []Step{step("a", "x=A", "y=Z")}}, "step 1 (a) gives it, too"},
		"input twice":   {Definition{Inputs: []Port{{Name: "A"}, {Name: "A"}}, Steps: []Step{step("a", "x=A", "y=Z")}}, "two inputs"},
		"output twice":  {Definition{Outputs: []Port{{Name: "Z"}, {Name: "Z"}}, Steps: []Step{step("a", "x=A", "y=Z")}}, "two outputs"},
		"unused input":  {Definition{Inputs: []Port{{Name: "A"}, {Name: "B"}}, Steps: []Step{step("a", "x=A", "y=Z")}}, `no step takes the ensemble's input "B"`},
		"nameless port": {Definition{Inputs: []Port{{}}, Steps: []Step{step("a", "x=A", "y=Z")}}, "has no name"},
		"unknown":       {Definition{Inputs: in, Steps: []Step{step("a", "x=A", "y=t"), step("b", "x=t q=missing", "y=Z")}}, `step 2 (b) takes the tensor "missing"`},
		"unused":        {Definition{Outputs: out, Steps: []Step{step("a", "x=A", "y=Z q=spare")}}, `gives the tensor "spare", which nothing takes`},
		"not given":     {Definition{Outputs: []Port{{Name: "nowhere"}}, Steps: []Step{step("a", "x=A", "y=Z")}}, `no step gives the ensemble's output "nowhere"`},
		"circle":        {Definition{Steps: []Step{step("a", "x=A y=u", "z=t"), step("b", "x=t", "z=u q=Z")}}, "circle: 2 (b) → 1 (a) → 2 (b)"},
		"self":          {Definition{Steps: []Step{step("a", "x=A y=t", "z=t q=Z")}}, "circle: 1 (a) → 1 (a)"},
		"all a circle":  {Definition{Steps: []Step{step("a", "x=t", "y=t")}}, "no inputs"},
		"whole, two":    {Definition{Whole: true, Steps: []Step{step("a", "body=A other=B", "=Z")}}, "one input"},
		"whole, names":  {Definition{Whole: true, Steps: []Step{step("a", "=A", "y=Z")}}, "one output, the body"},
		"whole, answer": {Definition{Whole: true, Steps: []Step{step("a", "=A", "=t"), step("b", "=t", "=Z")}}, "only the client's request"},
	} {
		if _, err := c.d.Checked(); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want %q", name, err, c.want)
		}
	}
}
