// Package malformed says why JSON or YAML was not understood, in the words of those formats: what reads them names types of this program.
package malformed

import (
	"encoding/base64"
	"encoding/json"
	"errors"
	"io"
	"reflect"
	"strconv"
	"strings"
)

// JSON words an error of encoding/json. Others, such as those of a type that reads itself, are given as they are.
func JSON(err error) string {
	if wrong, ok := errors.AsType[*json.UnmarshalTypeError](err); ok {
		return mismatch(wrong)
	}
	if syntax, ok := errors.AsType[*json.SyntaxError](err); ok {
		return syntax.Error() + at(syntax.Offset)
	}
	if wrong, ok := errors.AsType[base64.CorruptInputError](err); ok {
		return "a string is no base64, from its byte " + strconv.FormatInt(int64(wrong), 10) + " on"
	}
	switch {
	case errors.Is(err, io.EOF):
		return "it is empty"
	case errors.Is(err, io.ErrUnexpectedEOF):
		return "it ends too early"
	}
	text := strings.TrimPrefix(err.Error(), "json: ")
	if name, ok := strings.CutPrefix(text, "unknown field "); ok { // for which there is no type
		return "the member " + name + " is not known"
	}
	return text
}

// mismatch words a value of the wrong type.
func mismatch(wrong *json.UnmarshalTypeError) string {
	what := "it"
	if wrong.Field != "" {
		what = `"` + wrong.Field + `"`
	}
	is, needs := wrong.Value, jsonType(wrong.Type)
	number, isNumber := strings.CutPrefix(is, "number ")
	switch {
	case is == "bool":
		is = "true or false"
	case isNumber && isInteger(wrong.Type) && !strings.ContainsAny(number, ".eE") && (isSigned(wrong.Type) || number[0] != '-'):
		return what + " is the number " + number + ", which is out of range" + at(wrong.Offset)
	case isNumber:
		is = "the " + is
	default:
		is = article(is)
	}
	return what + " is " + is + " and has to be " + needs + at(wrong.Offset)
}

func at(offset int64) string {
	if offset <= 0 {
		return ""
	}
	return " (byte " + strconv.FormatInt(offset, 10) + ")"
}

func article(kind string) string {
	if strings.HasPrefix(kind, "a") || strings.HasPrefix(kind, "o") {
		return "an " + kind
	}
	return "a " + kind
}

// jsonType names a type as JSON does.
func jsonType(t reflect.Type) string {
	if name := scalar(t); name != "" {
		return name
	}
	if k := t.Kind(); k == reflect.Slice || k == reflect.Array {
		return "an array"
	}
	return "an object"
}

// scalar names a type of single values, "" for others.
func scalar(t reflect.Type) string {
	switch {
	case t.Kind() == reflect.String:
		return "a string"
	case t.Kind() == reflect.Bool:
		return "true or false"
	case isInteger(t) && isSigned(t):
		return "a whole number"
	case isInteger(t):
		return "a whole number, 0 or more"
	case t.Kind() == reflect.Float32 || t.Kind() == reflect.Float64:
		return "a number"
	}
	return ""
}

func isInteger(t reflect.Type) bool {
	return isSigned(t) || t.Kind() >= reflect.Uint && t.Kind() <= reflect.Uintptr
}

func isSigned(t reflect.Type) bool { return t.Kind() >= reflect.Int && t.Kind() <= reflect.Int64 }
