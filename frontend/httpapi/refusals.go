package httpapi

import (
	"net"
	"net/http"
	"strconv"
	"time"

	"github.com/flambeau-serve/flambeau/frontend/dispatch"
	"github.com/flambeau-serve/flambeau/internal/fault"
	"github.com/flambeau-serve/flambeau/internal/infer"
)

// Headers that say why a request was refused. TorchServe's error object has its three members and no more; what it has no room for is here.
const (
	numbersHeader = "X-Flambeau-Numbers"
	settingHeader = "X-Flambeau-Setting"
)

// behind is what an error knows beside its words.
type behind struct {
	numbers []fault.Number
	setting string
	after   time.Duration // when to try again
	again   bool          // whether to
}

func behindOf(err error) behind {
	var b behind
	b.numbers, b.setting, _ = fault.Details(err)
	b.after, b.again = fault.RetryDelay(err)
	return b
}

// setRefusal sets the headers that say why there is no better answer.
func setRefusal(h http.Header, p *problem) {
	if p.reason != "" {
		h[reasonHeader] = []string{p.reason}
	}
	if p.hint != "" {
		h[hintHeader] = []string{headerBytes(oneLine(p.hint))}
	}
	if len(p.numbers) > 0 {
		h[numbersHeader] = []string{headerBytes(oneLine(fault.NumbersText(p.numbers)))}
	}
	if p.setting != "" {
		h[settingHeader] = []string{headerBytes(oneLine(p.setting))}
	}
	if p.again {
		h["Retry-After"] = []string{strconv.FormatInt(fault.RetrySeconds(p.after), 10)}
	}
}

// appendRefusal adds what is known of a refusal to an error object of the Open Inference Protocol; others have the members that their clients expect, and
// these things in headers.
func appendRefusal(object []byte, p *problem, id string) []byte {
	if len(p.numbers) == 0 && p.setting == "" && !p.again {
		return object
	}
	b := object[:len(object)-len("\n}\n")]
	b = appendJSONString(append(b, ",\n  \"reason\": "...), p.reason)
	b = append(b, ",\n  \"numbers\": {"...)
	for i, n := range p.numbers {
		if i > 0 {
			b = append(b, ", "...)
		}
		b = append(append(appendJSONString(b, n.Name), ": "...), n.Text()...)
	}
	b = append(b, '}')
	for _, member := range []infer.Field{{Name: "setting", Value: p.setting}, {Name: "hint", Value: p.hint}, {Name: "request_id", Value: id}} {
		b = append(b, ",\n  "...)
		b = appendJSONString(append(appendJSONString(b, member.Name), ": "...), member.Value)
	}
	return append(b, "\n}\n"...)
}

// peer is the client's address without a port, "" when it has none.
func (q *request) peer() string {
	host, _, err := net.SplitHostPort(q.http.RemoteAddr)
	if err != nil {
		return ""
	}
	return host
}

// adminRefused is what a version has refused lately.
type adminRefused struct {
	Reason string    `json:"reason"` // of the last one
	At     time.Time `json:"at"`
	Count  int64     `json:"count"`
}

// Refused tells what versions have refused lately.
type Refused interface {
	// Refusals gives what a version has refused in the last minutes; a Count of 0 for nothing.
	Refusals(ref infer.ModelRef) dispatch.Refusals
}

// refusedOf tells what a version has refused in the last minutes, nil for nothing.
func (a *API) refusedOf(ref infer.ModelRef) *adminRefused {
	if a.opts.Admin == nil || a.opts.Admin.Refused == nil {
		return nil
	}
	last := a.opts.Admin.Refused.Refusals(ref)
	if last.Count == 0 {
		return nil
	}
	return &adminRefused{Reason: last.Reason, At: last.At, Count: last.Count}
}
