package rollout

import (
	"testing"
	"time"
)

// TestSummary of versions: one that may be without workers does not serve while the worker that it has is not ready.
func TestSummary(t *testing.T) {
	t.Parallel()
	ready, loading := Worker{State: "ready", Ready: true}, Worker{State: "loading"}
	waiting, failed := Worker{State: "waiting", Reason: "no weights"}, Worker{State: "failed", Reason: "no weights"}
	for name, tt := range map[string]struct {
		workers       []Worker
		min           int
		closing       bool
		state, reason string
	}{
		"none":                               {nil, 1, false, stateIdle, "it has no workers"},
		"draining":                           {[]Worker{ready}, 1, true, "draining", ""},
		"ready":                              {[]Worker{ready}, 1, false, stateServing, ""},
		"one of two loads":                   {[]Worker{ready, loading}, 2, false, "deploying", ""},
		"one of two failed":                  {[]Worker{ready, failed}, 2, false, "degraded", "no weights"},
		"one more than needed failed":        {[]Worker{ready, failed}, 1, false, stateServing, "no weights"},
		"no minimum, ready":                  {[]Worker{ready}, 0, false, stateServing, ""},
		"no minimum, the first one loads":    {[]Worker{loading}, 0, false, "deploying", ""},
		"no minimum, the first one waits":    {[]Worker{waiting}, 0, false, "failed", "no weights"},
		"no minimum, the first one gave up":  {[]Worker{failed}, 0, false, "failed", "no weights"},
		"no minimum, one failed, one serves": {[]Worker{failed, ready}, 0, false, stateServing, "no weights"},
	} {
		if state, reason := summary(tt.workers, tt.min, tt.closing); state != tt.state || reason != tt.reason {
			t.Errorf("%s: %q, %q", name, state, reason)
		}
	}
}

func TestSpanText(t *testing.T) {
	t.Parallel()
	for span, want := range map[time.Duration]string{
		30 * time.Second: "30s", 5 * time.Minute: "5m", 90 * time.Second: "1m30s", time.Hour: "1h", 10 * time.Hour: "10h", 90 * time.Minute: "1h30m",
		time.Hour + 10*time.Second: "1h0m10s",
	} {
		if got := spanText(span); got != want {
			t.Errorf("%d s: %q, want %q", span/time.Second, got, want)
		}
	}
}
