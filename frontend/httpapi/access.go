package httpapi

import (
	"strconv"
	"strings"
	"time"

	"github.com/flambeau-serve/flambeau/internal/redact"
)

// AccessEntry is what the access log keeps of a request.
type AccessEntry struct {
	At        time.Time // when its head had been read
	Took      time.Duration
	Port      Port
	Peer      string // address and port of the client
	Method    string
	Target    string // as sent; Line hides what is secret in it
	Version   string
	Status    int
	RequestID string
}

// Line is the entry as TorchServe writes it: the client, the request line, the status, milliseconds. Nothing that a client sends
// can end the line. Passwords and signatures in URLs that a target carries are hidden, which TorchServe does not do.
func (e AccessEntry) Line() string {
	var b strings.Builder
	b.WriteString("/" + e.Peer + ` "`)
	for i, part := range []string{e.Method, redact.Target(e.Target), e.Version} {
		if i > 0 {
			b.WriteByte(' ')
		}
		quoted := strconv.Quote(part)
		b.WriteString(strings.ReplaceAll(quoted[1:len(quoted)-1], `\\`, `\`))
	}
	b.WriteString(`" ` + strconv.Itoa(e.Status) + " " + strconv.FormatInt(e.Took.Milliseconds(), 10))
	return b.String()
}
