package session

/*
#include <stdlib.h>
#include "api.h"
*/
import "C"

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"unsafe"
)

// Input is the value of one input.
type Input struct {
	Name  string
	Value Value
}

// Run runs the model once and gives one Value for each of the outputs that are named, or for each of Outputs with none named. Inputs that may be absent are
// those of Defaults and optional ones. The data of inputs is not copied. When ctx ends, the run ends with the operator that it is at.
func (s *Session) Run(ctx context.Context, inputs []Input, outputs []string) ([]Value, error) {
	s.mu.RLock()
	defer s.mu.RUnlock()
	if s.session == nil {
		return nil, errors.New("the model is closed")
	}
	if len(outputs) == 0 {
		outputs = s.all
	}
	given := &givenValues{}
	defer given.release()
	var names, wanted []*C.char
	var values []*C.OrtValue
	for i := range inputs {
		name, v, err := s.given(given, &inputs[i])
		if err != nil {
			return nil, fmt.Errorf("the input %q: %w", inputs[i].Name, err)
		}
		names, values = append(names, name), append(values, v)
	}
	for _, name := range outputs {
		c := s.names[name]
		if c == nil {
			return nil, fmt.Errorf("the model has no output %q", name)
		}
		wanted = append(wanted, c)
	}
	got := make([]*C.OrtValue, len(wanted))
	defer func() {
		for _, v := range got {
			if v != nil {
				C.ort_release(v)
			}
		}
	}()
	if err := s.call(ctx, names, values, wanted, got); err != nil {
		return nil, err
	}
	out := make([]Value, len(got))
	for i, v := range got {
		var err error
		if out[i], err = read(outputs[i], v); err != nil {
			return nil, fmt.Errorf("the output %q: %w", outputs[i], err)
		}
	}
	return out, nil
}

func (s *Session) given(all *givenValues, in *Input) (*C.char, *C.OrtValue, error) {
	name := s.names[in.Name]
	if name == nil {
		return nil, nil, errors.New("the model has none of this name")
	}
	v, err := all.of(&in.Value)
	return name, v, err
}

// call runs the model. Its slices have addresses of the library's memory only.
func (s *Session) call(ctx context.Context, names []*C.char, values []*C.OrtValue, wanted []*C.char, got []*C.OrtValue) error {
	var options *C.OrtRunOptions
	if err := statusError(C.ort_run_options(&options)); err != nil {
		return fmt.Errorf("the options of a run: %w", err)
	}
	defer C.ort_release_run_options(options)
	ended := make(chan struct{})
	stop := context.AfterFunc(ctx, func() {
		defer close(ended)
		_ = statusError(C.ort_terminate(options)) // the run goes on to its end then
	})
	err := statusError(C.ort_run(s.pointer(), options, unsafe.SliceData(names), unsafe.SliceData(values), C.size_t(len(names)), unsafe.SliceData(wanted),
		C.size_t(len(wanted)), unsafe.SliceData(got)))
	if !stop() {
		<-ended
	}
	switch {
	case err == nil:
		return nil
	case ctx.Err() != nil:
		return context.Cause(ctx)
	}
	return fmt.Errorf("the model did not run: %w", err)
}

// pointer gives the library's session, which the binding keeps to itself: it is the first field of what its session points to.
func (s *Session) pointer() *C.OrtSession {
	return **(***C.OrtSession)(unsafe.Pointer(s.session)) // go.mod pins the binding, and every test would fail
}

// readPorts fills in what goes in and out.
func (s *Session) readPorts() error {
	s.names = map[string]*C.char{}
	for which, into := range []*[]Port{&s.Inputs, &s.Outputs, &s.Defaults} { // in the order of api.h's names
		var n C.size_t
		if err := statusError(C.ort_port_count(s.pointer(), C.int(which), &n)); err != nil {
			return err
		}
		for i := range n {
			var name *C.char
			var t C.ort_type
			if err := statusError(C.ort_port(s.pointer(), C.int(which), i, &name, &t)); err != nil {
				return err
			}
			p := portOf(C.GoString(name), &t)
			C.ort_free_name(name)
			*into = append(*into, p)
			if s.names[p.Name] == nil {
				s.names[p.Name] = C.CString(p.Name)
			}
		}
	}
	for i := range s.Outputs {
		s.all = append(s.all, s.Outputs[i].Name)
	}
	return nil
}

func (s *Session) freeNames() {
	for _, name := range s.names {
		C.free(unsafe.Pointer(name))
	}
	s.names = nil
}

func portOf(name string, t *C.ort_type) Port {
	p := Port{Name: name, Kind: kindOf(onnxType(t.kind)), Optional: t.optional != 0, DType: dtypeOf(elementType(t.element))}
	if t.rank >= 0 && p.DType != "" {
		p.Shape = slices.Clone(shapeOf(t))
		for d := range p.Shape {
			p.Shape[d] = max(p.Shape[d], -1)
		}
	}
	return p
}
