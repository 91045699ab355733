package httpapi

import (
	"bytes"
	"strings"

	"github.com/flambeau-serve/flambeau/internal/infer"
)

const (
	multipartType = "multipart/form-data"
	namelessPart  = `java.lang.NullPointerException: Cannot invoke "io.netty.handler.codec.http.multipart.Attribute.getValue()" because "nameAttribute" is null`
	mostParts     = 10000 // of one body; each costs memory beyond its bytes
)

// boundaryOf gives the boundary of a multipart/form-data content type. Without one TorchServe takes the body for any other.
func boundaryOf(contentType string) (string, bool) {
	if !strings.HasPrefix(contentType, multipartType) {
		return "", false
	}
	return boundaryParam(contentType)
}

func boundaryParam(contentType string) (string, bool) {
	for _, p := range strings.Split(contentType, ";")[1:] {
		name, value, _ := strings.Cut(p, "=")
		if !strings.EqualFold(strings.TrimSpace(name), "boundary") {
			continue
		}
		if n := len(value); n >= 2 && value[0] == '"' && value[n-1] == '"' {
			value = value[1 : n-1]
		}
		return value, true
	}
	return "", false
}

// parseMultipart reads a multipart/form-data body. As in TorchServe only parts that end with a delimiter count, so a body that was
// cut gives the parts before the cut, and one that does not begin with a delimiter gives none; plain fields are never decoded; a
// part without a name is an error. The parts' data are pieces of the body.
func parseMultipart(body []byte, boundary string) ([]infer.Part, error) {
	return (&formReader{}).read(body, boundary, "")
}

type formReader struct{ parts []infer.Part }

// read reads a body, or a part that is one itself (group is then that part's name).
func (m *formReader) read(body []byte, boundary, group string) ([]infer.Part, error) {
	if boundary == "" {
		return m.parts, nil
	}
	delimiter := []byte("--" + boundary)
	body = bytes.TrimLeft(body, " \t\r\n\v\f\x00")
	rest, last, ok := afterDelimiter(body, delimiter)
	if !ok {
		return m.parts, nil
	}
	for !last {
		header, content, ok := partHeader(rest)
		if !ok {
			break
		}
		var data []byte
		if data, rest, last, ok = cutPart(content, delimiter); !ok {
			break
		}
		if err := m.add(header, data, group); err != nil {
			return nil, err
		}
		if len(m.parts) > mostParts {
			return nil, badForm("The form has too many parts.")
		}
	}
	return m.parts, nil
}

// add keeps a part.
func (m *formReader) add(h partHead, data []byte, group string) error {
	name, file := h.name, h.file
	switch {
	case group != "":
		name, file = group, true
	case !h.named || h.disposition != "form-data":
		return badForm(namelessPart)
	}
	name, err := cleanName(name)
	if err != nil {
		return err
	}
	if inner, ok := boundaryParam(h.contentType); ok && group == "" && strings.HasPrefix(h.contentType, "multipart/mixed") {
		_, err := m.read(data, inner, name)
		return err
	}
	part := infer.Part{Name: name, Data: data}
	if file {
		switch strings.ToLower(h.encoding) {
		case "", "7bit", "8bit", "binary":
		default:
			return badForm("TransferEncoding Unknown: " + h.encoding)
		}
		part.ContentType = strings.TrimSpace(mimeOf(h.contentType))
	}
	m.parts = append(m.parts, part)
	return nil
}

// afterDelimiter reads a delimiter line at the beginning of b; last means that it was the closing one.
func afterDelimiter(b, delimiter []byte) (rest []byte, last, ok bool) {
	rest, ok = bytes.CutPrefix(b, delimiter)
	if !ok {
		return nil, false, false
	}
	if closed, is := bytes.CutPrefix(rest, []byte("--")); is {
		return closed, true, true
	}
	rest = bytes.TrimLeft(rest, " \t")
	rest = bytes.TrimPrefix(rest, []byte{'\r'})
	rest, ok = bytes.CutPrefix(rest, []byte{'\n'})
	return rest, false, ok
}

// cutPart finds the delimiter that ends a part. The line end before it is the delimiter's.
func cutPart(b, delimiter []byte) (data, rest []byte, last, ok bool) {
	for at := 0; ; {
		i := bytes.Index(b[at:], delimiter)
		if i < 0 {
			return nil, nil, false, false
		}
		at += i
		if at == 0 || b[at-1] == '\n' {
			if rest, last, ok = afterDelimiter(b[at:], delimiter); ok {
				return trimLineEnd(b[:at]), rest, last, true
			}
		}
		at++
	}
}

func trimLineEnd(b []byte) []byte {
	b = bytes.TrimSuffix(b, []byte{'\n'})
	return bytes.TrimSuffix(b, []byte{'\r'})
}

// partHead is what a part's own header says.
type partHead struct {
	disposition, name, contentType, encoding string
	named, file                              bool
}

// partHeader reads a part's header up to the empty line.
func partHeader(b []byte) (h partHead, rest []byte, ok bool) {
	for {
		line, after, found := bytes.Cut(b, []byte{'\n'})
		if !found {
			return h, nil, false
		}
		b = after
		text := strings.TrimSuffix(string(line), "\r")
		if text == "" {
			return h, b, true
		}
		name, value, _ := strings.Cut(text, ":")
		value = strings.TrimSpace(value)
		switch strings.ToLower(strings.TrimSpace(name)) {
		case "content-disposition":
			h.readDisposition(value)
		case "content-type":
			h.contentType = value
		case "content-transfer-encoding":
			h.encoding = value
		}
	}
}

// readDisposition reads a Content-Disposition. Quotes are dropped from names and what would separate becomes a blank, as TorchServe's
// decoder does it.
func (h *partHead) readDisposition(value string) {
	params := splitQuoted(value)
	h.disposition = strings.ToLower(strings.TrimSpace(params[0]))
	for _, p := range params[1:] {
		key, v, _ := strings.Cut(p, "=")
		switch strings.ToLower(strings.TrimSpace(key)) {
		case "name":
			h.name, h.named = cleanToken(v), true
		case "filename", "filename*":
			h.file = true
		}
	}
}

// splitQuoted splits at ; outside of double quotes.
func splitQuoted(s string) []string {
	var out []string
	start, quoted := 0, false
	for i := range len(s) {
		switch {
		case s[i] == '"' && (i == 0 || s[i-1] != '\\'):
			quoted = !quoted
		case s[i] == ';' && !quoted:
			out = append(out, s[start:i])
			start = i + 1
		}
	}
	return append(out, s[start:])
}

func cleanToken(s string) string {
	s = strings.Map(func(r rune) rune {
		switch r {
		case '"':
			return -1
		case ':', ',', '=', ';', '\t':
			return ' '
		}
		return r
	}, s)
	return strings.TrimSpace(s)
}
