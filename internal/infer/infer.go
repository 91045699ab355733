// Package infer holds the values that travel from a request to its response. It imports nothing but the standard library.
package infer

import "time"

// ModelRef names a model version. An empty Version means the model's default version.
type ModelRef struct{ Name, Version string }

// String gives "name" or "name/version".
func (r ModelRef) String() string {
	if r.Version == "" {
		return r.Name
	}
	return r.Name + "/" + r.Version
}

// Field is one header: the name keeps the spelling of whoever sent it.
type Field struct{ Name, Value string }

// Part is one named value of a request: the body, or a field of a form.
type Part struct {
	Name string
	// ContentType is the media type without parameters, or "" when the part is not to be decoded
	// (plain form fields, query parameters, bodies without a content type).
	ContentType string
	// Data is owned by the item; nobody writes to it after the item was made.
	Data []byte
}

// Item is one client request inside a batch.
type Item struct {
	ID     string  // the request id: unique, also in the answer's x-request-id
	Header []Field // in the order sent, duplicates kept
	Parts  []Part  // in the order sent, duplicates kept: a later one replaces an earlier one of the same name
	// Sequence is the sequence that it belongs to, for models that keep state from one request to the next; "" for none.
	Sequence string
	Alone    bool // it must be a batch by itself, whatever the batch size
	Rows     int  // samples that it holds, for statistics; 0 for one
	// Priority is its class: 1 goes before 2, and so on; 0 is the model's default class.
	Priority int
	// Peer is the address that it came from, without a port; "" when it is not known.
	Peer string
	// Client is who it counts for where clients share a queue fairly; "" where they do not.
	Client string
	// Deadline is when nobody waits for the answer any more; zero for never.
	Deadline time.Time
	// Gone is closed once nobody waits for the answer any more; nil when that is not known. What runs within the server stops by it; what has crossed the
	// border runs on.
	Gone <-chan struct{}
	// Emit takes each intermediate answer, in order and before the last one, which comes as every answer does. It is called
	// from one goroutine at a time, must not block, and may be called after nobody waits any more. Nil: they are dropped.
	Emit func(Result)
}

// Size is the number of payload bytes that the item keeps in memory.
func (i *Item) Size() int64 {
	var n int64
	for _, p := range i.Parts {
		n += int64(len(p.Data))
	}
	return n
}

// Result is the answer to one item.
type Result struct {
	Status int     // HTTP status that the handler set; 0 when it set none
	Header []Field // headers that the handler set, "content-type" among them
	Body   []byte
	Err    error // set: this item failed, its neighbours in the batch did not
}
