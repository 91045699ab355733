package dispatch

import (
	"context"
	"math"
	"strconv"
	"strings"
	"time"

	"github.com/flambeau-serve/flambeau/internal/fault"
	"github.com/flambeau-serve/flambeau/internal/infer"
	"github.com/flambeau-serve/flambeau/modelstore/rollout"
)

// timeoutHeader is the header by which a client says how long it waits, in seconds.
const timeoutHeader = "X-Request-Timeout"

// longestTimeout is what longer times count as.
const longestTimeout = 365 * 24 * time.Hour

// bound sets a request's deadline: the earliest of the one that ctx has (gRPC's, the timeout of the Open Inference Protocol), of the header
// X-Request-Timeout, and of the version's clientTimeoutInMills, the last two counted from its arrival. The item carries it to the worker.
func bound(ctx context.Context, v *rollout.Version, item *infer.Item, begun time.Time) (context.Context, context.CancelFunc, error) {
	asked, err := askedTimeout(item.Header)
	if err != nil {
		return nil, nil, err
	}
	var late *fault.Error
	limit := v.ClientTimeout()
	switch {
	case asked > 0 && (limit <= 0 || asked <= limit):
		limit = asked
		late = fault.Newf(fault.ClientTimeout, "the request was not answered within the %s that its header %s allows", asked, timeoutHeader)
		late.Hint = "send a larger " + timeoutHeader + " if the client can wait longer"
	case limit > 0:
		late = fault.Newf(fault.ClientTimeout, "the request was not answered within the client timeout of %s", limit)
		late.Hint = "raise clientTimeoutInMills in model-config.yaml if clients may wait longer"
		late.Setting = "clientTimeoutInMills in model-config.yaml"
	}
	cancel := func() {}
	if late != nil {
		late.Numbers = []fault.Number{fault.Millis("timeout_ms", limit)}
		ctx, cancel = context.WithDeadlineCause(ctx, begun.Add(limit), late)
	}
	if at, ok := ctx.Deadline(); ok {
		item.Deadline = at
	}
	return ctx, cancel, nil
}

// askedTimeout reads the header X-Request-Timeout: how long the client waits, 0 if it does not say.
func askedTimeout(header []infer.Field) (time.Duration, error) {
	text, found := "", false
	for i := range header {
		if f := &header[i]; len(f.Name) == len(timeoutHeader) && strings.EqualFold(f.Name, timeoutHeader) {
			text, found = strings.TrimSpace(f.Value), true // of several the last one, as for handlers
		}
	}
	if !found {
		return 0, nil
	}
	seconds, err := strconv.ParseFloat(text, 64)
	if err != nil && !math.IsInf(seconds, 0) || math.IsNaN(seconds) || seconds <= 0 || math.IsInf(seconds, 0) || strings.ContainsAny(text, "xXpP_") {
		f := fault.Newf(fault.BadRequest, "the header %s is %.40q, which is not a number of seconds above 0", timeoutHeader, text)
		f.Hint = "send the seconds that the client waits, as 2 or 0.25, or leave the header out"
		return 0, f
	}
	if seconds >= longestTimeout.Seconds() {
		return longestTimeout, nil
	}
	return max(time.Duration(seconds*float64(time.Second)), time.Nanosecond), nil
}
