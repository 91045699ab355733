// Package pbtxt reads config.pbtxt, the text in which a model repository of NVIDIA's Triton describes a model.
package pbtxt

import (
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/encoding/prototext"
	"google.golang.org/protobuf/reflect/protoreflect"

	tritonv1 "github.com/flambeau-serve/flambeau/proto/triton/v1"
)

// File is what the text is called.
const File = "config.pbtxt"

// MaxBytes is the largest text that is read.
const MaxBytes = 1 << 20

// Error is why a text cannot be used.
type Error struct {
	Line int // 0 when no line is to blame
	Text string
	Hint string // what to do, "" if nothing
}

// Error gives the text with its line.
func (e *Error) Error() string {
	if e.Line == 0 {
		return e.Text
	}
	return "line " + strconv.Itoa(e.Line) + ": " + e.Text
}

// Warning is what is left out of a text.
type Warning struct {
	Line int
	Text string
}

// parsed is a text and where its fields stand.
type parsed struct {
	config *tritonv1.ModelConfig
	fields []field
}

// position is where the library's errors say that something is wrong. It writes a space or one that does not break, by chance.
var position = regexp.MustCompile(`\(line (\d+):\d+\):?[\s\x{a0}]*`)

// parse reads a text, and tells which of its fields have no place.
func parse(text []byte) (*parsed, []Warning, error) {
	if len(text) > MaxBytes {
		return nil, nil, &Error{Text: fmt.Sprintf("it is larger than %d bytes", MaxBytes)}
	}
	if !utf8.Valid(text) {
		return nil, nil, &Error{Text: "it is no text in UTF-8"}
	}
	fields, err := scan(string(text))
	if err != nil {
		return nil, nil, err
	}
	p := &parsed{config: &tritonv1.ModelConfig{}, fields: fields}
	if err := (prototext.UnmarshalOptions{DiscardUnknown: true}).Unmarshal(text, p.config); err != nil {
		return nil, nil, explained(err)
	}
	return p, unknown(fields, p.config.ProtoReflect().Descriptor(), ""), nil
}

// explained takes an error of the library apart.
func explained(err error) error {
	said := strings.TrimLeft(strings.TrimPrefix(err.Error(), "proto:"), " \u00a0")
	e := &Error{Text: said}
	if at := position.FindStringSubmatchIndex(said); at != nil {
		e.Line, _ = strconv.Atoi(said[at[2]:at[3]])
		e.Text = said[:at[0]] + said[at[1]:]
	}
	return e
}

// unknown lists the fields that a message has no place for.
func unknown(fields []field, d protoreflect.MessageDescriptor, path string) []Warning {
	var all []Warning
	for _, f := range fields {
		if f.name == member {
			all = append(all, unknown(f.sub, d, path)...)
			continue
		}
		found := d.Fields().ByTextName(f.name)
		switch {
		case found == nil:
			all = append(all, Warning{f.line, path + f.name})
		case found.Message() != nil:
			all = append(all, unknown(f.sub, found.Message(), path+f.name+".")...)
		}
	}
	return all
}

// line finds where a field stands: each name is that of a field in the one before it, and index says which of several of the last name.
func (p *parsed) line(index int, names ...string) int {
	fields, line := p.fields, 0
	for i, name := range names {
		want := 0
		if i == 0 {
			want = index
		}
		f := nth(fields, name, want)
		if f == nil {
			return line
		}
		fields, line = f.sub, f.line
	}
	return line
}

// nth gives one of the fields of a name. Messages of a list count as fields of their own.
func nth(fields []field, name string, n int) *field {
	for i := range fields {
		f := &fields[i]
		if f.name != name {
			continue
		}
		members := slices.ContainsFunc(f.sub, func(s field) bool { return s.name == member })
		switch {
		case members && n < len(f.sub):
			return &f.sub[n]
		case members:
			n -= len(f.sub)
		case n == 0:
			return f
		default:
			n--
		}
	}
	return nil
}

// refuse is an error about a field.
func (p *parsed) refuse(hint string, line int, format string, args ...any) error {
	return &Error{Line: line, Text: fmt.Sprintf(format, args...), Hint: hint}
}

// asJSON writes what was read in the words of Triton's model configuration.
func asJSON(c *tritonv1.ModelConfig) ([]byte, error) {
	text, err := protojson.MarshalOptions{UseProtoNames: true}.Marshal(c)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", File, err)
	}
	return text, nil
}
