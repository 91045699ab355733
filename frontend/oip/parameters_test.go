package oip

import (
	"fmt"
	"strings"
	"testing"

	"github.com/flambeau-serve/flambeau/internal/fault"
)

// TestParametersOfTheWrongType has what a real Triton refuses, too. Beyond these it refuses null, which is no parameter here, and sequences below 0.
func TestParametersOfTheWrongType(t *testing.T) {
	t.Parallel()
	const inputs = `"inputs":[{"name":"A","shape":[1],"datatype":"FP32","data":[1]}]`
	request := func(name, value string) string { return `{"parameters":{"` + name + `":` + value + `},` + inputs + `}` }
	output := func(name, value string) string {
		return `{` + inputs + `,"outputs":[{"name":"X","parameters":{"` + name + `":` + value + `}}]}`
	}
	input := func(name, value string) string {
		return `{"inputs":[{"name":"A","shape":[1],"datatype":"FP32","parameters":{"` + name + `":` + value + `}}]}`
	}
	const amount, truth = "0 or more, without a point or an exponent", "has to be true or false"
	for _, tc := range []struct {
		make    func(name, value string) string
		name    string
		good    []string
		wrong   []string // what the error calls them stands behind ->
		needs   string
		inWords string
	}{
		{
			request, ParamTimeout,
			[]string{"0", "5", "18446744073709551615", "null"},
			[]string{`"5"->the string "5"`, "7.5->7.5", "5.0->5", "true->true", "-1->-1", "1e3->1000", "[1]->an array", `{"a":1}->an object`},
			amount, "microseconds",
		},
		{
			request, ParamPriority,
			[]string{"0", "5", "18446744073709551615", "null"},
			[]string{`"high"->the string "high"`, "7.5->7.5", "false->false", "-1->-1", "[1]->an array"},
			amount, "whole number",
		},
		{
			request, ParamSequence,
			[]string{"0", "-7", "7", "18446744073709551615", `"abc"`, `""`, "null"},
			[]string{"7.5->7.5", "7.0->7", "true->true", "[7]->an array", `{}->an object`},
			"or a string", "whole number",
		},
		{request, ParamSequenceStart, []string{"true", "false", "null"}, []string{`"yes"->the string "yes"`, "1->1", "0->0", "1.5->1.5", "[]->an array"}, truth, ""},
		{request, ParamSequenceEnd, []string{"true", "false", "null"}, []string{`"yes"->the string "yes"`, "1->1"}, truth, ""},
		{request, ParamEmptyFinal, []string{"true", "false", "null"}, []string{`"yes"->the string "yes"`, "1->1"}, truth, ""},
		{request, paramBinaryOutputs, []string{"true", "false", "null"}, []string{`"yes"->the string "yes"`, "1->1", "[true]->an array", "{}->an object"}, truth, ""},
		{request, "custom", []string{"1", "1.5", `"a"`, "true", "null", "[1]", "{}"}, nil, "", ""},
		{output, paramClasses, []string{"0", "3", "null"}, []string{`"3"->the string "3"`, "1.5->1.5", "true->true", "-1->-1", "[3]->an array", "{}->an object"}, amount, "of output 'X'"},
		{output, paramBinary, []string{"true", "false", "null"}, []string{`"yes"->the string "yes"`, "1->1", "[true]->an array", "{}->an object"}, truth, ""},
		{output, paramRegion, nil, []string{"5->5", "true->true", `""->the string ""`, `["r"]->an array`, "{}->an object"}, "has to be the name of a region", ""},
		{input, paramRegion, nil, []string{"5->5", `["r"]->an array`, `{"r":1}->an object`}, "has to be the name of a region", ""},
		{output, "custom", []string{"1", "1.5", `"a"`, "true", "null", "[1]", "{}"}, nil, "", ""},
	} {
		for _, value := range tc.good {
			if _, err := DecodeRequest([]byte(tc.make(tc.name, value)), ""); err != nil {
				t.Errorf("%s %s: %v", tc.name, value, err)
			}
		}
		for _, value := range tc.wrong {
			value, is, _ := strings.Cut(value, "->")
			r, err := DecodeRequest([]byte(tc.make(tc.name, value)), "")
			if r != nil || !fault.Is(err, fault.BadRequest) || !IsParameter(err) || !strings.Contains(fault.Message(err), "the parameter "+tc.name+" ") ||
				!strings.Contains(fault.Message(err), " is "+is+", and has to be ") || !strings.Contains(fault.Message(err), tc.needs) || !strings.Contains(fault.Message(err), tc.inWords) {
				t.Errorf("%s %s: %v", tc.name, value, err)
			}
		}
	}
}

// TestOnlyRequestsOfTheProtocolHaveParameters has bodies that are none, which may be those of a handler of its own format.
func TestOnlyRequestsOfTheProtocolHaveParameters(t *testing.T) {
	t.Parallel()
	for _, body := range []string{
		`{"parameters":{"timeout":"5"}}`, `{"parameters":{"timeout":"5"},"inputs":"a text"}`, `{"parameters":{"timeout":"5"},"inputs":[{"name":"A"}]}`,
	} {
		if _, err := DecodeRequest([]byte(body), ""); err == nil || IsParameter(err) {
			t.Errorf("%s: %v", body, err)
		}
	}
}

func TestValuesInErrorsAreShort(t *testing.T) {
	t.Parallel()
	err := CheckParameter(ParamTimeout, strings.Repeat("é", 10_000))
	if text := fmt.Sprint(err); len(text) > 300 || !strings.Contains(text, "é") {
		t.Errorf("%q", text)
	}
	if err := CheckParameter(ParamTimeout, nil); err == nil || !strings.Contains(err.Error(), "timeout is without a value") {
		t.Errorf("%v", err)
	}
}

// TestWordsOfMalformedAnswers: what a handler answers in another form is told without words that only this program knows.
func TestWordsOfMalformedAnswers(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		`{"outputs":{}}`:                         `: "outputs" is an object and has to be an array (byte 12)`,
		`{"outputs":[{"name":5}]}`:               `: "outputs.name" is a number and has to be a string (byte 21)`,
		`{"outputs":[{"name":"X","shape":"1"}]}`: `: "outputs.shape" is a string and has to be an array (byte 35)`,
		`[]`:                                     `: it is an array and has to be an object`,
		`<p>`:                                    `: invalid character '<' looking for beginning of value`,
		``:                                       `: it is empty`,
	} {
		_, err := DecodeResponse([]byte(text), "")
		if got := fault.Message(err); err == nil || !strings.HasPrefix(got, "the model's answer is not one of the Open Inference Protocol"+want) || strings.Contains(err.Error(), "json") {
			t.Errorf("%s: %v", text, err)
		}
	}
}
