package policy

import (
	"testing"
	"time"
)

func TestExplore3(t *testing.T) {
	sq := func(n int) time.Duration { return 20*ms + time.Duration(n*n)*ms/10 }
	mk := func(l load, w int, noise float64) world {
		return world{load: l, workers: w, fixed: 20 * ms, each: 2 * ms, noise: noise, from: 100 * time.Second, until: 180 * time.Second, seed: 3}
	}
	th := func() load { l := loop(64); l.think = 50 * ms; return l }
	for _, c := range []struct {
		name string
		w    func() world
		goal time.Duration
	}{
		{"c64 w1 goal 250", func() world { return mk(loop(64), 1, .3) }, 250 * ms},
		{"c64 w1 goal 80", func() world { return mk(loop(64), 1, .3) }, 80 * ms},
		{"c64 w1 goal 160", func() world { return mk(loop(64), 1, .3) }, 160 * ms},
		{"c64 w4 goal 80", func() world { return mk(loop(64), 4, .3) }, 80 * ms},
		{"c64 w4 goal 60", func() world { return mk(loop(64), 4, .3) }, 60 * ms},
		{"p200 w1 goal 90", func() world { return mk(open(200), 1, .3) }, 90 * ms},
		{"p200 w1 goal 80", func() world { return mk(open(200), 1, .3) }, 80 * ms},
		{"p200 w2 goal 55", func() world { return mk(open(200), 2, .3) }, 55 * ms},
		{"p200 w4 goal 45", func() world { return mk(open(200), 4, .3) }, 45 * ms},
		{"p200 w4 goal 40", func() world { return mk(open(200), 4, .3) }, 40 * ms},
		{"p400 w4 goal 45", func() world { return mk(open(400), 4, .3) }, 45 * ms},
		{"think w4 goal 60", func() world { return mk(th(), 4, .3) }, 60 * ms},
		{"think w4 goal 40", func() world { return mk(th(), 4, .3) }, 40 * ms},
		{"square c64 w1 goal 300", func() world { w := mk(loop(64), 1, .1); w.took = sq; return w }, 300 * ms},
		{"square c64 w1 goal 250", func() world { w := mk(loop(64), 1, .1); w.took = sq; return w }, 250 * ms},
		{"square p200 w1 goal 100", func() world { w := mk(open(200), 1, .1); w.took = sq; return w }, 100 * ms},
	} {
		p := newPolicy(t, Options{Limits: Limits{64, 100 * ms}, Goal: c.goal})
		r := c.w().run(p)
		z := c.w().run(newPolicy(t, Options{Limits: Limits{64, 100 * ms}}))
		l, _ := p.(Tuner).Limits()
		t.Logf("%s: rate %.1f (adaptive %.1f) p99 %v (adaptive %v) limits %v", c.name, r.rate, z.rate, r.percentile(99), z.percentile(99), l)
		for _, s := range r.steps {
			t.Logf("      %v %s", s.At.Round(time.Second), s)
		}
	}
}
