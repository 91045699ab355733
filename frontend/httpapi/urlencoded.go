package httpapi

import (
	"bytes"
	"strings"

	"github.com/flambeau-serve/flambeau/internal/fault"
	"github.com/flambeau-serve/flambeau/internal/infer"
)

// parseForm reads an application/x-www-form-urlencoded body as TorchServe does: fields end at & only, the body at a line end, and
// a last name without = is no field.
func parseForm(body []byte) ([]infer.Part, error) {
	body = bytes.TrimLeft(body, " \t\r\n\v\f\x00")
	if end := bytes.IndexAny(body, "\r\n"); end >= 0 {
		body = body[:end]
	}
	var parts []infer.Part
	for len(body) > 0 {
		field, rest, more := bytes.Cut(body, []byte{'&'})
		body = rest
		rawName, rawValue, valued := bytes.Cut(field, []byte{'='})
		if !valued && !more {
			break
		}
		name, err := formName(string(rawName))
		if err != nil {
			return nil, err
		}
		value, err := formValue(rawValue)
		if err != nil {
			return nil, err
		}
		parts = append(parts, infer.Part{Name: name, Data: value})
	}
	return parts, nil
}

func formName(raw string) (string, error) {
	name, err := unescape(raw, 0, len(raw), true)
	if err != nil {
		return "", badForm("Bad string: '" + raw + "'")
	}
	return cleanName(name)
}

// cleanName checks a field's name.
func cleanName(name string) (string, error) {
	if name = strings.TrimSpace(name); name == "" {
		return "", badForm("java.lang.IllegalArgumentException: empty name")
	}
	return strings.ToValidUTF8(name, "\ufffd"), nil
}

// formValue decodes a value into bytes of its own.
func formValue(raw []byte) ([]byte, error) {
	value := make([]byte, 0, len(raw))
	for i := 0; i < len(raw); i++ {
		switch c := raw[i]; c {
		case '+':
			value = append(value, ' ')
		case '%':
			high, low := -1, -1
			if i+2 < len(raw) {
				high, low = unhex(raw[i+1]), unhex(raw[i+2])
			}
			if high < 0 || low < 0 {
				return nil, fault.Newf(fault.BadForm, "Invalid hex byte at index '%d' in string: '%s'", i, raw)
			}
			value = append(value, byte(high<<4|low))
			i += 2
		default:
			value = append(value, c)
		}
	}
	return value, nil
}

func badForm(message string) error { return fault.New(fault.BadForm, message, nil) }
