package frame

import (
	"encoding/binary"
	"strings"
)

// inlineLimit is the size from which a payload becomes a segment of its own instead of being copied.
const inlineLimit = 4 << 10

// Buffers is an encoded frame in segments, to be sent one after the other. Large payloads are segments of their own, not
// copies: they must not change until the frame has been sent.
type Buffers [][]byte

// Len gives the frame's size in bytes.
func (b Buffers) Len() int {
	n := 0
	for _, s := range b {
		n += len(s)
	}
	return n
}

// Join gives the frame in one piece. It copies unless there is one segment only.
func (b Buffers) Join() []byte {
	if len(b) == 1 {
		return b[0]
	}
	out := make([]byte, 0, b.Len())
	for _, s := range b {
		out = append(out, s...)
	}
	return out
}

// EncodeBatch encodes a batch frame. Texts that are not UTF-8 get U+FFFD in place of what is wrong in them.
func EncodeBatch(batchID uint64, items []Item) Buffers {
	size := headSize
	for i := range items {
		size += minItemSize + len(items[i].ID) + fieldsSize(items[i].Header)
		for _, p := range items[i].Parts {
			size += minPartSize + len(p.Name) + len(p.ContentType) + inlineSize(p.Data)
		}
	}
	w := newWriter(size, Head{Kind: KindBatch, Count: count(len(items)), BatchID: batchID})
	for i := range items {
		it := &items[i]
		w.str(it.ID)
		w.u64(uint64(it.Deadline))
		w.fields(it.Header)
		w.u32(count(len(it.Parts)))
		for _, p := range it.Parts {
			w.str(p.Name)
			w.str(p.ContentType)
			w.blob(p.Data)
		}
	}
	return w.done()
}

// EncodeResults encodes a results frame, or a piece frame when kind is KindPiece. Texts that are not UTF-8 get U+FFFD in
// place of what is wrong in them.
func EncodeResults(kind Kind, batchID uint64, results []Result) Buffers {
	size := headSize
	for i := range results {
		size += minResultSize + fieldsSize(results[i].Header) + inlineSize(results[i].Body)
		if f := results[i].Failure; f != nil {
			size += minFieldSize + len(f.Reason) + len(f.Message) + len(f.Detail)
		}
	}
	w := newWriter(size, Head{Kind: kind, Count: count(len(results)), BatchID: batchID})
	for i := range results {
		w.result(&results[i])
	}
	return w.done()
}

// EncodeCancel encodes a cancel frame.
func EncodeCancel(batchID uint64) Buffers {
	return newWriter(headSize, Head{Kind: KindCancel, BatchID: batchID}).done()
}

// writer collects segments; buf holds the bytes that are not in a segment yet.
type writer struct {
	segments Buffers
	buf      []byte
}

func newWriter(size int, h Head) *writer {
	w := &writer{buf: make([]byte, 0, size)}
	w.buf = append(w.buf, byte(h.Kind), h.Flags, 0, 0)
	w.u32(h.Count)
	w.u64(h.BatchID)
	return w
}

func (w *writer) result(r *Result) {
	if r.Failure == nil {
		w.buf = append(w.buf, outcomeAnswered)
	} else {
		w.buf = append(w.buf, outcomeFailed)
	}
	w.u32(r.Status)
	w.fields(r.Header)
	if r.Failure == nil {
		w.blob(r.Body)
		return
	}
	w.str(string(r.Failure.Reason))
	w.str(r.Failure.Message)
	w.str(r.Failure.Detail)
}

func (w *writer) fields(fields []Field) {
	w.u32(count(len(fields)))
	for _, f := range fields {
		w.str(f.Name)
		w.str(f.Value)
	}
}

func (w *writer) str(s string) {
	s = strings.ToValidUTF8(s, "\uFFFD")
	w.u32(count(len(s)))
	w.buf = append(w.buf, s...)
}

func (w *writer) blob(b []byte) {
	w.u64(uint64(len(b)))
	if len(b) < inlineLimit {
		w.buf = append(w.buf, b...)
		return
	}
	w.flush()
	w.segments = append(w.segments, b)
}

// flush makes a segment of buf; what is appended later lies behind it and cannot touch it.
func (w *writer) flush() {
	n := len(w.buf)
	w.segments = append(w.segments, w.buf[:n:n])
	w.buf = w.buf[n:]
}

func (w *writer) done() Buffers {
	if len(w.buf) > 0 {
		w.flush()
	}
	return w.segments
}

func (w *writer) u32(v uint32) { w.buf = binary.LittleEndian.AppendUint32(w.buf, v) }
func (w *writer) u64(v uint64) { w.buf = binary.LittleEndian.AppendUint64(w.buf, v) }

// count is a length on the wire. Nothing that fits into a gRPC message comes near its limit.
func count(n int) uint32 {
	return uint32(n)
}

func fieldsSize(fields []Field) int {
	n := 0
	for _, f := range fields {
		n += minFieldSize + len(f.Name) + len(f.Value)
	}
	return n
}

func inlineSize(b []byte) int {
	if len(b) < inlineLimit {
		return len(b)
	}
	return 0
}
