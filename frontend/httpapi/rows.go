package httpapi

import (
	"slices"
	"strconv"
	"strings"

	"github.com/flambeau-serve/flambeau/frontend/httpapi/wire"
	"github.com/flambeau-serve/flambeau/internal/infer"
)

const formType = "application/x-www-form-urlencoded"

// parts makes the request's row: query parameters where the route says so, then the fields of a form, or the body as one.
func (q *request) parts(withQuery bool) ([]infer.Part, error) {
	var parts []infer.Part
	if withQuery {
		params, err := queryOf(q.head.Target)
		if err != nil {
			return nil, err
		}
		for _, p := range params {
			parts = append(parts, infer.Part{Name: p.name, Data: []byte(p.value)})
		}
	}
	var form []infer.Part
	var err error
	contentType := q.head.Get("Content-Type")
	if boundary, ok := boundaryOf(contentType); ok {
		form, err = parseMultipart(q.body, boundary)
	} else if kind := mimeOf(contentType); strings.EqualFold(kind, formType) {
		form, err = parseForm(q.body)
	} else {
		form = []infer.Part{{Name: "body", ContentType: kind, Data: q.body}}
	}
	return append(parts, form...), err
}

// handlerHeader is what the handler sees of the request's header, with room for more fields. A chunked body has got a length by
// now, and the handler sees that instead.
func (q *request) handlerHeader(more int) []infer.Field {
	fields := make([]infer.Field, 0, len(q.head.Fields)+more+1)
	if q.head.Length != wire.Chunked {
		fields = append(fields, q.head.Fields...)
		if !slices.ContainsFunc(fields, func(f infer.Field) bool { return strings.EqualFold(f.Name, "Content-Length") }) {
			fields = append(fields, infer.Field{Name: "content-length", Value: "0"}) // TorchServe's HTTP layer adds it
		}
		return fields
	}
	for _, f := range q.head.Fields {
		if !strings.EqualFold(f.Name, "Transfer-Encoding") {
			fields = append(fields, f)
		}
	}
	return append(fields, infer.Field{Name: "content-length", Value: strconv.Itoa(len(q.body))})
}

// textOf gives the text of the last part of that name.
func textOf(parts []infer.Part, name string) (string, bool) {
	for _, p := range slices.Backward(parts) {
		if p.Name == name {
			return string(p.Data), true
		}
	}
	return "", false
}
