package oip

import (
	"encoding/json"
	"errors"
	"reflect"
	"strconv"
	"strings"
)

// Malformed says why JSON was not understood, in words of JSON: the decoder's own name types of this program.
func Malformed(err error) string {
	wrong, ok := errors.AsType[*json.UnmarshalTypeError](err)
	if !ok {
		return err.Error()
	}
	what := "it"
	if wrong.Field != "" {
		what = `"` + wrong.Field + `"`
	}
	at := ""
	if wrong.Offset > 0 {
		at = " (byte " + strconv.FormatInt(wrong.Offset, 10) + ")"
	}
	is := wrong.Value
	switch {
	case is == "bool":
		is = "true or false"
	case strings.HasPrefix(is, "number "):
		is = "the " + is
	default:
		is = article(is)
	}
	return what + " is " + is + " and has to be " + wanted(wrong.Type) + at
}

func article(kind string) string {
	if strings.HasPrefix(kind, "a") || strings.HasPrefix(kind, "o") {
		return "an " + kind
	}
	return "a " + kind
}

// wanted names a type as JSON does.
func wanted(t reflect.Type) string {
	switch t.Kind() { //nolint:exhaustive // the others are not read from JSON
	case reflect.String:
		return "a string"
	case reflect.Bool:
		return "true or false"
	case reflect.Int, reflect.Int8, reflect.Int16, reflect.Int32, reflect.Int64, reflect.Uint, reflect.Uint8, reflect.Uint16, reflect.Uint32, reflect.Uint64:
		return "a whole number"
	case reflect.Float32, reflect.Float64:
		return "a number"
	case reflect.Slice, reflect.Array:
		return "an array"
	}
	return "an object"
}
