package wire

import (
	"strconv"
	"strings"

	"github.com/flambeau-serve/flambeau/internal/infer"
)

// Head is the head of one request as the client sent it.
type Head struct {
	Method  string
	Target  string // bytes above 0x7f read as Latin-1, as TorchServe reads them
	Version string // "HTTP/1.1"
	// Fields are the header fields in the order sent, spelling and duplicates kept, values read as Latin-1 without the blanks
	// around them. An Expect that the server heeds is left out, as TorchServe leaves it out.
	Fields []infer.Field
	// Length is the body's length, Chunked if only its end will tell.
	Length int64
	// UnknownExpect is set when the client expects what no server can do.
	UnknownExpect bool
	// Malformed says what is wrong with the head, "" when nothing is. The other members are then as far as they were read.
	Malformed string

	seq     uint64
	expects bool // the client waits for a 100 before it sends the body
	last    bool // the client says that it will send no more requests on this connection
}

// Chunked is the length of a body that is sent in chunks.
const Chunked int64 = -1

// maxLengthDigits keeps a length far from overflowing.
const maxLengthDigits = 18

// Get gives the first field of that name, compared without case, or "".
func (h *Head) Get(name string) string {
	for i := range h.Fields {
		if strings.EqualFold(h.Fields[i].Name, name) {
			return h.Fields[i].Value
		}
	}
	return ""
}

// parseHead reads a whole head: the request line to the empty line. It refuses everything that two servers could read in two
// ways: folded lines, blanks before a colon, line ends of two kinds, control characters, and more than one statement of the
// body's length.
func parseHead(raw []byte) *Head {
	h := &Head{}
	text := string(raw) // everything in the head is a part of this one string
	line, text, found := strings.Cut(text, "\n")
	line, carriage := strings.CutSuffix(line, "\r") // the request line decides how all the lines end
	if !found || !h.requestLine(line) {
		h.Malformed = "request line"
		return h
	}
	h.Fields = make([]infer.Field, 0, strings.Count(text, "\n"))
	for {
		end := strings.IndexByte(text, '\n')
		if end < 0 {
			h.Malformed = "header block"
			return h
		}
		field := text[:end]
		text = text[end+1:]
		if carriage {
			if field, found = strings.CutSuffix(field, "\r"); !found {
				h.Malformed = "line end"
				return h
			}
		}
		if field == "" {
			break
		}
		if !h.field(field) {
			h.Malformed = "header field"
			return h
		}
	}
	h.Malformed = h.framing()
	return h
}

// requestLine reads method, target and version, which any run of blanks may part.
func (h *Head) requestLine(line string) bool {
	var parts [3]string
	n := 0
	for i := 0; i < len(line); {
		if blank(line[i]) {
			i++
			continue
		}
		start := i
		for i < len(line) && !blank(line[i]) {
			if line[i] < ' ' || line[i] == 0x7f {
				return false
			}
			i++
		}
		if n == len(parts) {
			return false
		}
		parts[n] = line[start:i]
		n++
	}
	if n != len(parts) || blank(line[0]) {
		return false
	}
	v := parts[2]
	if len(v) != len("HTTP/1.1") || v[:5] != "HTTP/" || !digit(v[5]) || v[6] != '.' || !digit(v[7]) {
		return false
	}
	h.Method, h.Target, h.Version = latin1(parts[0]), latin1(parts[1]), v
	return true
}

// field reads one header field; false if it is none.
func (h *Head) field(line string) bool {
	colon := strings.IndexByte(line, ':')
	if colon <= 0 {
		return false
	}
	name, value := line[:colon], strings.Trim(line[colon+1:], " \t")
	for i := range len(name) {
		if !nameByte(name[i]) {
			return false
		}
	}
	for i := range len(value) {
		if c := value[i]; c < ' ' && c != '\t' || c == 0x7f {
			return false
		}
	}
	h.Fields = append(h.Fields, infer.Field{Name: name, Value: latin1(value)})
	return true
}

// framing finds the body's length and takes the Expect field out. It gives what is wrong, "" if nothing.
func (h *Head) framing() string {
	lengths, encodings, expect := 0, 0, -1
	h.last = h.Version < "HTTP/1.1"
	for i := range h.Fields {
		f := &h.Fields[i]
		switch {
		case strings.EqualFold(f.Name, "Content-Length"):
			lengths++
			n, ok := length(f.Value)
			if !ok {
				return "Content-Length"
			}
			h.Length = n
		case strings.EqualFold(f.Name, "Transfer-Encoding"):
			encodings++
			if !strings.EqualFold(f.Value, "chunked") {
				return "Transfer-Encoding"
			}
		case strings.EqualFold(f.Name, "Expect") && expect < 0:
			expect = i
		case strings.EqualFold(f.Name, "Connection"):
			h.last = strings.EqualFold(f.Value, "close") || h.last && !strings.EqualFold(f.Value, "keep-alive")
		}
	}
	if lengths+encodings > 1 || encodings > 0 && h.Version < "HTTP/1.1" {
		return "body length"
	}
	if encodings > 0 {
		h.Length = Chunked
	}
	if expect < 0 || h.Version < "HTTP/1.1" {
		return ""
	}
	if !strings.EqualFold(h.Fields[expect].Value, "100-continue") {
		h.UnknownExpect = true
		return ""
	}
	h.expects = h.Length != 0
	h.Fields = append(h.Fields[:expect], h.Fields[expect+1:]...)
	return ""
}

// length reads a Content-Length: digits and nothing else.
func length(s string) (int64, bool) {
	if s == "" || len(s) > maxLengthDigits {
		return 0, false
	}
	for i := range len(s) {
		if !digit(s[i]) {
			return 0, false
		}
	}
	n, err := strconv.ParseInt(s, 10, 64)
	return n, err == nil
}

func blank(c byte) bool { return c == ' ' || c == '\t' }

func digit(c byte) bool { return c >= '0' && c <= '9' }

// nameByte is what TorchServe lets into a field's name: more than RFC 9110 does, none of what could be read in two ways.
func nameByte(c byte) bool {
	return c > ' ' && c < 0x7f && c != ',' && c != ':' && c != ';' && c != '='
}

// latin1 gives the text whose characters are the bytes of s.
func latin1(s string) string {
	high := 0
	for i := range len(s) {
		if s[i] >= 0x80 {
			high++
		}
	}
	if high == 0 {
		return s
	}
	var b strings.Builder
	b.Grow(len(s) + high)
	for i := range len(s) {
		b.WriteRune(rune(s[i]))
	}
	return b.String()
}
