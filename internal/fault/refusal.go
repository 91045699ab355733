package fault

import (
	"errors"
	"strconv"
	"strings"
	"time"
)

// Number is a figure behind a refusal. Its name has its unit: waiting, limit, oldest_wait_ms, bytes_limit.
type Number struct {
	Name  string
	Value float64
}

// Count is a Number of things.
func Count[T int | int64](name string, n T) Number { return Number{name, float64(n)} }

// Millis is a time as a Number, in milliseconds; name ends with _ms.
func Millis(name string, d time.Duration) Number {
	const steps = 10 // of a millisecond: no more is meant
	return Number{name, float64((d*steps).Round(time.Millisecond)/time.Millisecond) / steps}
}

// Text is the value as JSON has it.
func (n Number) Text() string { return strconv.FormatFloat(n.Value, 'f', -1, 64) }

// NumbersText lists numbers in one line: "waiting=100, limit=100".
func NumbersText(all []Number) string {
	var b strings.Builder
	for i, n := range all {
		if i > 0 {
			b.WriteString(", ")
		}
		b.WriteString(n.Name + "=" + n.Text())
	}
	return b.String()
}

// Details gives what is known behind an error: the numbers in their order, the setting that would change it, and when to try again. All are empty for an
// error that nobody has explained.
func Details(err error) (numbers []Number, setting string, retryAfter time.Duration) {
	if f, ok := errors.AsType[*Error](err); ok {
		return f.Numbers, f.Setting, f.RetryAfter
	}
	return nil, "", 0
}

// Refused says whether a request was refused, or given up while it waited: no handler has seen it.
func Refused(err error) bool {
	return Is(err, NoWorker, NoReadyWorker, Overloaded, ConcurrencyLimit, ClientShare, ServerBytes, Draining, QueueTimeout)
}

// RetryDelay is how long a refused client is asked to wait, and whether it is asked to try again at all: what was computed, else the least that is told.
func RetryDelay(err error) (time.Duration, bool) {
	if !Retryable(err) || !Refused(err) || Is(err, QueueTimeout) { // who has waited knows best when to try again
		return 0, false
	}
	if _, _, after := Details(err); after > 0 {
		return after, true
	}
	return leastDelay, true
}

// leastDelay is what HTTP's Retry-After can tell at least, for a moment that may be 0.
const leastDelay = time.Second

// RetrySeconds is a delay as HTTP's Retry-After tells it: in whole seconds, never too early, at least 1.
func RetrySeconds(after time.Duration) int64 {
	return max(int64((after+time.Second-1)/time.Second), 1)
}

// TooManyBytes refuses n bytes of a request's body for which the server has no room beside those that it holds; limit is how many it may hold, 0 when that is
// not known.
func TooManyBytes(n, limit int64) *Error {
	f := &Error{
		Kind: ServerBytes, Message: "The server holds as many bytes of requests as it may.",
		Hint:    "Send the request again later, or let the server hold more bytes in flight.",
		Numbers: []Number{Count("bytes_request", n)}, Setting: "inflight_max_bytes in config.properties",
	}
	if limit > 0 {
		f.Numbers = append(f.Numbers, Count("server_bytes_limit", limit))
	}
	return f
}
