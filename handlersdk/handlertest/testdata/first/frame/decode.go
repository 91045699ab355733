package frame

import (
	"encoding/binary"
	"fmt"
	"strings"
)

// DecodeHead reads the head of a frame.
func DecodeHead(b []byte) (Head, error) {
	if len(b) < headSize {
		return Head{}, fmt.Errorf("%w: %d bytes are no frame, its head alone has %d", ErrMalformed, len(b), headSize)
	}
	if b[2] != 0 || b[3] != 0 {
		return Head{}, fmt.Errorf("%w: bytes 2 and 3 are 0x%02x%02x instead of zero", ErrMalformed, b[3], b[2])
	}
	return Head{
		Kind:    Kind(b[0]),
		Flags:   b[1],
		Count:   binary.LittleEndian.Uint32(b[4:]),
		BatchID: binary.LittleEndian.Uint64(b[8:]),
	}, nil
}

// DecodeBatch reads a batch frame. The data of the parts is not copied: it lies in b.
func DecodeBatch(b []byte) (Head, []Item, error) {
	r, h, err := open(b, minItemSize, "items", KindBatch)
	if err != nil {
		return h, nil, err
	}
	items := make([]Item, h.Count)
	for i := range items {
		r.where, r.index = "item", i
		r.item(&items[i])
		if r.err != nil {
			return h, nil, r.err
		}
	}
	return h, items, r.end()
}

// DecodeResults reads a results or piece frame. The bodies are not copied: they lie in b.
func DecodeResults(b []byte) (Head, []Result, error) {
	r, h, err := open(b, minResultSize, "results", KindResults, KindPiece)
	if err != nil {
		return h, nil, err
	}
	results := make([]Result, h.Count)
	for i := range results {
		r.where, r.index = "result", i
		r.result(&results[i])
		if r.err != nil {
			return h, nil, r.err
		}
	}
	return h, results, r.end()
}

// open checks the head and the count of a frame that must be of one of kinds.
func open(b []byte, minSize int, what string, kinds ...Kind) (*reader, Head, error) {
	h, err := DecodeHead(b)
	if err != nil {
		return nil, h, err
	}
	for _, k := range kinds {
		if h.Kind != k {
			continue
		}
		r := &reader{rest: b[headSize:], size: len(b), where: "head"}
		r.fits(h.Count, minSize, what)
		return r, h, r.err
	}
	return nil, h, fmt.Errorf("%w: kind %d where %v was expected", ErrMalformed, h.Kind, kinds)
}

// reader takes values off a frame. After an error everything that it gives is zero.
type reader struct {
	rest  []byte
	size  int    // of the whole frame, for messages
	where string // what is being read, for messages
	index int    // which one of them
	err   error
}

func (r *reader) item(it *Item) {
	it.ID = r.str("id")
	it.Deadline = int64(r.u64("deadline"))
	it.Header = r.fields()
	n := r.u32("number of parts")
	if !r.fits(n, minPartSize, "parts") {
		return
	}
	it.Parts = make([]Part, n)
	for i := range it.Parts {
		it.Parts[i] = Part{Name: r.str("part name"), ContentType: r.str("content type"), Data: r.blob("part data")}
	}
}

func (r *reader) result(res *Result) {
	outcome := r.take(1, "outcome")
	if r.err != nil {
		return
	}
	res.Status = r.u32("status")
	res.Header = r.fields()
	switch outcome[0] {
	case outcomeAnswered:
		res.Body = r.blob("body")
	case outcomeFailed:
		res.Failure = &Failure{Reason: Reason(r.str("reason")), Message: r.str("message"), Detail: r.str("detail")}
	default:
		r.fail("outcome %d is neither answered (0) nor failed (1)", outcome[0])
	}
}

func (r *reader) fields() []Field {
	n := r.u32("number of headers")
	if n == 0 || !r.fits(n, minFieldSize, "headers") {
		return nil
	}
	fields := make([]Field, n)
	for i := range fields {
		fields[i] = Field{Name: r.str("header name"), Value: r.str("header value")}
	}
	return fields
}

// fits refuses a count that the rest of the frame cannot hold, before memory is taken for it.
func (r *reader) fits(n uint32, minSize int, what string) bool {
	if r.err == nil && uint64(n)*uint64(minSize) > uint64(len(r.rest)) {
		r.fail("%d %s need at least %d bytes", n, what, uint64(n)*uint64(minSize))
	}
	return r.err == nil
}

func (r *reader) take(n uint64, what string) []byte {
	if r.err != nil {
		return nil
	}
	if n > uint64(len(r.rest)) {
		r.fail("%s needs %d bytes", what, n)
		return nil
	}
	b := r.rest[:n:n]
	r.rest = r.rest[n:]
	return b
}

func (r *reader) u32(what string) uint32 {
	if b := r.take(4, what); b != nil {
		return binary.LittleEndian.Uint32(b)
	}
	return 0
}

func (r *reader) u64(what string) uint64 {
	if b := r.take(8, what); b != nil {
		return binary.LittleEndian.Uint64(b)
	}
	return 0
}

// str gives a text. A peer's slip in UTF-8 is mended, not punished: the text is for people or goes through unchanged.
func (r *reader) str(what string) string {
	return strings.ToValidUTF8(string(r.take(uint64(r.u32(what)), what)), "\uFFFD")
}

func (r *reader) blob(what string) []byte { return r.take(r.u64(what), what) }

func (r *reader) end() error {
	if r.err == nil && len(r.rest) > 0 {
		r.where, r.index = "end", 0
		r.fail("nothing should follow")
	}
	return r.err
}

func (r *reader) fail(format string, args ...any) {
	r.err = fmt.Errorf("%w of %d bytes, %s %d: %s, %d bytes are left",
		ErrMalformed, r.size, r.where, r.index, fmt.Sprintf(format, args...), len(r.rest))
	r.rest = nil
}
