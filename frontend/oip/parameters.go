package oip

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"

	"github.com/flambeau-serve/flambeau/internal/fault"
)

// What a parameter with a meaning has to be. Numbers are as Triton takes them: whole, and written so.
const (
	needsMicroseconds = "a whole number of microseconds, 0 or more, without a point or an exponent"
	needsClass        = "a whole number, 0 or more, without a point or an exponent"
	needsSequence     = "a whole number without a point or an exponent, or a string"
	needsClasses      = "a whole number of classes, 0 or more, without a point or an exponent"
	needsRegion       = "the name of a region"
	needsTruth        = "true or false"
)

// parameterError refuses the value of a parameter that has a meaning.
type parameterError struct{ refusal *fault.Error }

func (e *parameterError) Error() string { return e.refusal.Error() }

func (e *parameterError) Unwrap() error { return e.refusal }

// IsParameter says whether a request was refused for the value of a parameter: all else of it is as the protocol has it.
func IsParameter(err error) bool {
	_, is := errors.AsType[*parameterError](err)
	return is
}

func badParameter(format string, args ...any) error {
	return &parameterError{fault.Newf(fault.BadRequest, format, args...)}
}

// CheckParameter refuses a parameter of a request that has a meaning and cannot have it with that value; nil is one that was given without a value.
func CheckParameter(name string, value any) error {
	switch name {
	case ParamTimeout:
		return expect(name, value, isAmount(value), needsMicroseconds)
	case ParamPriority:
		return expect(name, value, isAmount(value), needsClass)
	case ParamSequence:
		_, text := value.(string)
		return expect(name, value, text || isWhole(value), needsSequence)
	case ParamSequenceStart, ParamSequenceEnd, ParamEmptyFinal:
		return expect(name, value, isTruth(value), needsTruth)
	}
	return nil
}

// CheckOutput does the same for a parameter of an output that is asked for. Where in shared memory it is wanted, TakeShared checks.
func CheckOutput(output, name string, value any) error {
	needs := ""
	switch {
	case name == paramClasses && !isAmount(value):
		needs = needsClasses
	case name == paramRegion && value == nil:
		needs = needsRegion
	default:
		return nil
	}
	return badParameter("the parameter %s of output '%s' is %s, and has to be %s", name, output, valueText(value), needs)
}

func expect(name string, value any, fits bool, needs string) error {
	if fits {
		return nil
	}
	return badParameter("the parameter %s is %s, and has to be %s", name, valueText(value), needs)
}

func isTruth(value any) bool {
	_, is := value.(bool)
	return is
}

func isWhole(value any) bool {
	switch value.(type) {
	case int64, uint64:
		return true
	}
	return false
}

// isAmount says whether a value is a whole number that is not below 0.
func isAmount(value any) bool {
	n, signed := value.(int64)
	return isWhole(value) && (!signed || n >= 0)
}

// mostShown bounds how much of a value an error repeats.
const mostShown = 40

// valueText tells what a value is.
func valueText(value any) string {
	switch v := value.(type) {
	case nil:
		return "without a value"
	case string:
		if len(v) > mostShown {
			return "the string " + strconv.Quote(v[:mostShown]) + "…"
		}
		return "the string " + strconv.Quote(v)
	case float64:
		return strconv.FormatFloat(v, 'g', -1, 64)
	case json.RawMessage:
		if bytes.HasPrefix(v, []byte("[")) {
			return "an array"
		}
		return "an object"
	}
	return fmt.Sprint(value)
}

// DecodeParameters reads the parameters of a request from their JSON, where null is none.
func DecodeParameters(raw map[string]json.RawMessage) (Parameters, error) {
	return parameters(raw, checkParameters)
}

// checkParameters refuses what cannot be one of a request.
func checkParameters(p Parameters) error {
	for _, name := range slices.Sorted(maps.Keys(p)) {
		if err := CheckParameter(name, p[name]); err != nil {
			return err
		}
	}
	return nil
}

// decodeRequested reads an output that is asked for.
func decodeRequested(o *jsonRequested) (Requested, error) {
	r := Requested{Name: o.Name}
	var err error
	r.Params, err = parameters(o.Params, takeShared(&r.Shared), func(p Parameters) error {
		for _, name := range slices.Sorted(maps.Keys(p)) {
			if err := CheckOutput(r.Name, name, p[name]); err != nil {
				return err
			}
		}
		return nil
	}, flag(paramBinary))
	return r, err
}

// takeShared makes a check of TakeShared, which keeps what it finds.
func takeShared(found **Shared) func(Parameters) error {
	return func(p Parameters) (err error) {
		*found, err = TakeShared(p)
		return err
	}
}

// flag makes the check that refuses a parameter that is there, and neither true nor false.
func flag(name string) func(Parameters) error {
	return func(p Parameters) error {
		if value, given := p[name]; given {
			return expect(name, value, isTruth(value), needsTruth)
		}
		return nil
	}
}
