// Command countdown is a Flambeau handler that streams: it counts down from the number that it is sent, one line at a time.
package main

import (
	"context"
	"fmt"
	"log/slog"
	"strconv"
	"strings"
	"time"

	"github.com/flambeau-serve/flambeau/handlersdk"
)

func main() {
	slog.SetDefault(slog.New(handlersdk.NewLogHandler(nil)))
	handlersdk.Serve(&countdown{pause: 50 * time.Millisecond})
}

// most is the largest number that is counted from.
const most = 1000

// countdown answers many requests at the same time, since it mostly waits.
type countdown struct {
	pause  time.Duration
	counts *handlersdk.Metric
}

var (
	_ handlersdk.Streamer   = (*countdown)(nil)
	_ handlersdk.Concurrent = (*countdown)(nil)
)

// Initialize implements handlersdk.Handler.
func (c *countdown) Initialize(_ context.Context, m handlersdk.Model) error {
	c.counts = handlersdk.NewMetrics(m).Counter("CountdownsTotal", handlersdk.Count)
	return nil
}

// Concurrent implements handlersdk.Concurrent.
func (c *countdown) Concurrent() bool { return true }

// Handle implements handlersdk.Handler, for who has no use for pieces: the whole countdown is one answer.
func (c *countdown) Handle(ctx context.Context, items []handlersdk.Item) ([]handlersdk.Result, error) {
	return handlersdk.Whole(ctx, c, items)
}

// HandleStream implements handlersdk.Streamer.
func (c *countdown) HandleStream(ctx context.Context, items []handlersdk.Item, emit handlersdk.Emit) ([]handlersdk.Result, error) {
	results := make([]handlersdk.Result, len(items))
	for i := range items {
		results[i] = c.count(ctx, &items[i], func(piece handlersdk.Result) error { return emit(i, piece) })
	}
	return results, nil
}

func (c *countdown) count(ctx context.Context, item *handlersdk.Item, emit func(handlersdk.Result) error) handlersdk.Result {
	body := item.Body()
	from, err := strconv.Atoi(strings.TrimSpace(string(body.Data)))
	if err != nil || from < 0 || from > most {
		return handlersdk.Result{Err: handlersdk.Errorf(400, "%.20q is no number from 0 to %d", body.Data, most)}
	}
	slog.InfoContext(handlersdk.ForItem(ctx, item), "countdown begins", "from", from)
	tick := time.NewTicker(c.pause)
	defer tick.Stop()
	for n := from; n > 0; n-- {
		piece := handlersdk.Result{Header: []handlersdk.Field{{Name: "content-type", Value: "text/plain"}}, Body: fmt.Appendf(nil, "%d\n", n)}
		if err := emit(piece); err != nil {
			return handlersdk.Result{Err: err}
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return handlersdk.Result{Err: context.Cause(ctx)}
		}
	}
	if err := c.counts.Report(ctx, 1); err != nil {
		slog.WarnContext(ctx, "the metric was not reported", "error", err.Error())
	}
	return handlersdk.Result{Header: []handlersdk.Field{{Name: "content-type", Value: "text/plain"}}, Body: []byte("lift-off\n")}
}
