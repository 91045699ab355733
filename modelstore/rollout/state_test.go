package rollout

import (
	"slices"
	"testing"

	"go.uber.org/goleak"
	"pgregory.net/rapid"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// TestRandomChangesNeverLeaveTheTable tries random changes: legal ones happen, illegal ones fail the instance, and nothing comes back to life.
func TestRandomChangesNeverLeaveTheTable(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		l := &life{}
		stopped := false
		for range rapid.IntRange(1, 20).Draw(rt, "steps") {
			to := State(rapid.IntRange(int(Starting), int(Stopped)).Draw(rt, "to"))
			before, _ := l.read()
			from, err := l.to(to, "because")
			after, reason := l.read()
			legal := slices.Contains(next(before), to)
			switch {
			case from != before:
				rt.Fatalf("reported %s, it was %s", from, before)
			case legal && (err != nil || after != to):
				rt.Fatalf("%s to %s: %v, now %s", before, to, err, after)
			case !legal && (err == nil || after != Failed):
				rt.Fatalf("%s to %s was allowed, now %s", before, to, after)
			case reason != "because":
				rt.Fatalf("reason %q", reason)
			case stopped && after == Ready:
				rt.Fatal("a stopped instance became ready")
			}
			stopped = stopped || after == Stopped
		}
	})
}

func TestEveryStateLeadsToStopped(t *testing.T) {
	for s := Starting; s <= Stopped; s++ {
		reached, todo := map[State]bool{}, []State{s}
		for len(todo) > 0 {
			x := todo[0]
			todo = todo[1:]
			if !reached[x] {
				reached[x] = true
				todo = append(todo, next(x)...)
			}
		}
		if !reached[Stopped] {
			t.Errorf("%s never gets to stopped", s)
		}
	}
}

func TestDelaysGrow(t *testing.T) {
	if delay(1) != 0 {
		t.Errorf("the first restart waits %v: it must come at once", delay(1))
	}
	for n := 2; n < 40; n++ {
		if delay(n) < delay(n-1) {
			t.Errorf("delay(%d) is %v, less than before", n, delay(n))
		}
	}
}
