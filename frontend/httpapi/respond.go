package httpapi

import (
	"net/http"
	"runtime/debug"
	"strconv"
	"strings"

	"github.com/flambeau-serve/flambeau/internal/infer"
)

// answer is what a route answers with.
type answer struct {
	status int           // 0 means 200
	kind   string        // content type; "" for none, unless a field gives one
	fields []infer.Field // that the handler set
	body   []byte
	bare   bool // no header but the length, as TorchServe's HTTP layer answers
	sent   bool // it has been written already, as a stream
	broken bool // with sent: the stream has no proper end
}

// fixedHeaders are values that go out with many answers. Nobody writes to them.
type fixedHeaders struct {
	noCache, cacheControl, expires, keepAlive, closing, zero, json []string
	cors                                                           []infer.Field
}

func newFixedHeaders(cors CORS) fixedHeaders {
	f := fixedHeaders{
		noCache:      []string{"no-cache"},
		cacheControl: []string{"no-cache; no-store, must-revalidate, private"},
		expires:      []string{"Thu, 01 Jan 1970 00:00:00 UTC"},
		keepAlive:    []string{"keep-alive"},
		closing:      []string{"close"},
		zero:         []string{"0"},
		json:         []string{"application/json"},
	}
	for name, value := range map[string]string{
		"access-control-allow-origin":  cors.Origin,
		"access-control-allow-methods": cors.Methods,
		"access-control-allow-headers": cors.Headers,
	} {
		if value != "" {
			f.cors = append(f.cors, infer.Field{Name: name, Value: value})
		}
	}
	return f
}

// noDefaults keeps net/http from adding headers that TorchServe does not send.
func noDefaults(h http.Header) {
	h["Date"] = nil
	h["Content-Type"] = nil
}

// send writes an answer.
func (a *API) send(q *request, ans answer) {
	if ans.status == 0 {
		ans.status = statusOK
	}
	h := q.w.Header()
	noDefaults(h)
	if ans.bare {
		a.dropBody(q)
	} else {
		a.setHeaders(q, h, ans)
	}
	body := ans.body
	switch ans.status {
	case statusNoContent, statusNotModified:
		body = nil // and no length
	case statusResetContent:
		body = nil
		h["Content-Length"] = a.fixed.zero
	default:
		h["Content-Length"] = []string{strconv.Itoa(len(body))}
	}
	q.status = ans.status
	q.w.WriteHeader(ans.status)
	writeHeaderNow(q.w)
	if len(body) > 0 && q.head.Method != http.MethodHead {
		_, _ = q.w.Write(body) // a client that is gone needs no answer; net/http closes the connection
	}
}

// setHeaders sets all the headers but the length.
func (a *API) setHeaders(q *request, h http.Header, ans answer) {
	for _, f := range a.fixed.cors {
		h[f.Name] = []string{f.Value}
	}
	if ans.kind != "" {
		h["content-type"] = []string{ans.kind}
	}
	for _, f := range ans.fields {
		if reserved(f.Name) || !sendable(f) {
			continue
		}
		for name := range h { // the last one of a name counts, however it is spelled
			if len(name) == len(f.Name) && strings.EqualFold(name, f.Name) {
				delete(h, name)
			}
		}
		h[f.Name] = []string{headerBytes(f.Value)}
	}
	if _, ok := h["Content-Type"]; !ok {
		h["Content-Type"] = nil
	}
	if _, ok := h["Date"]; !ok {
		h["Date"] = nil
	}
	h["x-request-id"] = []string{q.id}
	h["Pragma"] = a.fixed.noCache
	h["Cache-Control"] = a.fixed.cacheControl
	h["Expires"] = a.fixed.expires
	h["Connection"] = a.fixed.keepAlive
	if ans.status >= firstErrorStatus {
		h["Connection"] = a.fixed.closing
	}
}

// reserved names are the server's, whatever a handler sets.
func reserved(name string) bool {
	switch strings.ToLower(name) {
	case "x-request-id", "pragma", "cache-control", "expires", "connection", "content-length", "transfer-encoding", "trailer":
		return true
	}
	return false
}

// sendable says whether a handler's header can be sent as it is.
func sendable(f infer.Field) bool {
	if f.Name == "" {
		return false
	}
	for i := range len(f.Name) {
		if c := f.Name[i]; c <= ' ' || c >= 0x7f || strings.IndexByte(`"(),/:;<=>?@[\]{}`, c) >= 0 {
			return false
		}
	}
	for i := range len(f.Value) {
		if c := f.Value[i]; c < ' ' && c != '\t' || c == 0x7f {
			return false
		}
	}
	return true
}

// headerBytes writes a header's value in Latin-1, as TorchServe does, with ? for what is not in it.
func headerBytes(value string) string {
	ascii := true
	for i := range len(value) {
		ascii = ascii && value[i] < 0x80
	}
	if ascii {
		return value
	}
	b := make([]byte, 0, len(value))
	for _, r := range value {
		if r > 0xff {
			r = '?'
		}
		b = append(b, byte(r))
	}
	return string(b)
}

// sendProblem answers with TorchServe's error object. What it has no room for goes into headers.
func (a *API) sendProblem(q *request, p *problem) {
	if p.status == statusOK { // a handler may fail with 200; TorchServe then answers so
		a.send(q, answer{body: []byte("error")})
		return
	}
	ans := answer{status: p.status, kind: a.fixed.json[0], body: errorJSON(p)}
	if q.protocol {
		ans.body = protocolErrorJSON(p, q.id)
	}
	setRefusal(q.w.Header(), p)
	a.send(q, ans)
}

// oneLine makes text fit into a header.
func oneLine(s string) string {
	const most = 1000
	s = strings.Map(func(r rune) rune {
		if r < ' ' || r == 0x7f {
			return ' '
		}
		return r
	}, s)
	return s[:min(len(s), most)]
}

// jsonAnswer is a success with a JSON text.
func jsonAnswer(text []byte) answer { return answer{kind: "application/json", body: text} }

func stack() string { return string(debug.Stack()) }
