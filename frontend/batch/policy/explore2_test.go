package policy

import (
	"os"
	"testing"
	"time"
)

func TestExplore2(t *testing.T) {
	mk := map[string]func() world{}
	for name, f := range map[string]func() load{
		"p200": func() load { return open(200) }, "p400": func() load { return open(400) },
		"think":   func() load { l := loop(64); l.think = 50 * ms; return l },
		"think20": func() load { l := loop(64); l.think = 20 * ms; return l },
		"c64":     func() load { return loop(64) },
	} {
		for _, w := range []int{1, 2, 4} {
			mk[name+"w"+string(rune('0'+w))] = func() world {
				return world{load: f(), workers: w, fixed: 20 * ms, each: 2 * ms, noise: .2, from: 2 * time.Second, until: 33 * time.Second, seed: 5}
			}
		}
	}
	for _, name := range []string{"p200w1", "p200w2", "p200w4", "p400w1", "p400w2", "p400w4", "thinkw1", "thinkw2", "thinkw4", "think20w1", "think20w2", "think20w4", "c64w1", "c64w2", "c64w4"} {
		w := mk[name]
		b, l := grid(t, w, 64, faster)
		m, ml := grid(t, w, 64, sooner)
		a := w().run(newPolicy(t, Options{Limits: Limits{64, 100 * ms}}))
		z := w().run(newPolicy(t, Options{Rule: TorchServe, Limits: Limits{64, 0}}))
		var held time.Duration
		for _, h := range a.held {
			held += h
		}
		t.Logf("%-10s rate %.3f mean %.2f p99 %.2f (vs %v %v) [no wait: rate %.3f mean %.2f] held %v/batch %s", name, a.rate/b.rate, float64(a.mean())/float64(m.mean()), float64(a.percentile(99))/float64(m.percentile(99)), l, ml, z.rate/b.rate, float64(z.mean())/float64(m.mean()), held/time.Duration(len(a.held)), os.Getenv("X"))
	}
}
