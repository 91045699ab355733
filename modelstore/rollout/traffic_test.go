package rollout

import (
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/google/go-cmp/cmp"

	"github.com/flambeau-serve/flambeau/internal/fault"
	"github.com/flambeau-serve/flambeau/internal/infer"
	"github.com/flambeau-serve/flambeau/plugins/backendtest"
)

func noHeader(string) string { return "" }

func headers(pairs ...string) func(string) string {
	return func(name string) string {
		for i := 0; i < len(pairs); i += 2 {
			if strings.EqualFold(pairs[i], name) {
				return pairs[i+1]
			}
		}
		return ""
	}
}

// threeVersions is a house with the model m in the versions 1.0, the default one, 2.0 and 3.0, and the changes of traffic that it told.
func threeVersions(t *testing.T) (h *house, told *[]Change) {
	t.Helper()
	told = &[]Change{}
	store := archives{}
	for _, v := range []string{"1.0", "2.0", "3.0"} {
		store[v] = named("m", v)
	}
	h = newHouse(t, &backendtest.Launcher{}, store, func(o *Options) {
		o.Changed = func(c Change) {
			if c.Kind == ChangeTraffic {
				*told = append(*told, c)
			}
		}
	})
	for _, v := range []string{"1.0", "2.0", "3.0"} {
		register(t, h, Spec{URL: v, Synchronous: true})
	}
	return h, told
}

// goes gives the version that a request is for.
func (h *house) goes(t *testing.T, version string, header func(string) string) string {
	t.Helper()
	v, err := h.Route(infer.ModelRef{Name: "m", Version: version}, header, nil)
	if err != nil {
		return fault.Message(err)
	}
	return v.Ref().Version
}

func (h *house) setTraffic(t *testing.T, tr Traffic) {
	t.Helper()
	if err := h.SetTraffic(WithActor(t.Context(), Actor{Who: "api"}), "m", tr); err != nil {
		t.Fatal(err)
	}
}

// spread says how many of n users get each version.
func (h *house) spread(t *testing.T, n int) (of []string, count map[string]int) {
	t.Helper()
	count = map[string]int{}
	for i := range n {
		v := h.goes(t, "", headers("Cookie", fmt.Sprintf("a=b; uid=user-%d; c=d", i)))
		of = append(of, v)
		count[v]++
	}
	return of, count
}

func TestLabels(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h, told := threeVersions(t)
		h.setTraffic(t, Traffic{Labels: map[string]string{"stable": "1.0", "canary": "2.0", "next": "2.0"}})
		for version, want := range map[string]string{
			"": "1.0", "2.0": "2.0", "canary": "2.0", "stable": "1.0", "beta": "Model version: beta does not exist for model: m",
		} {
			if got := h.goes(t, version, noHeader); got != want {
				t.Errorf("%q goes to %q, want %q", version, got, want)
			}
		}
		d, err := h.Describe(infer.ModelRef{Name: "m", Version: "canary"})
		if err != nil || d.Ref.Version != "2.0" || !slices.Equal(d.Labels, []string{"canary", "next"}) || d.Weight != 0 {
			t.Errorf("described as %+v, %v", d, err)
		}
		if v, err := h.Resolve(infer.ModelRef{Name: "m", Version: "canary"}); err != nil || v.Ref().Version != "2.0" {
			t.Errorf("resolved: %v", err)
		}
		if err := h.Unregister(t.Context(), infer.ModelRef{Name: "m", Version: "canary"}); !fault.Is(err, fault.VersionNotFound) {
			t.Errorf("a label must not be enough to remove a version: %v", err)
		}
		if len(*told) != 1 || (*told)[0].Reason != "label canary: 2.0, label next: 2.0, label stable: 1.0" || (*told)[0].Actor.Who != "api" ||
			(*told)[0].Ref != (infer.ModelRef{Name: "m"}) {
			t.Errorf("told %+v", *told)
		}
		h.end(t)
	})
}

func TestTrafficByHeader(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h, _ := threeVersions(t)
		if got := h.goes(t, "", headers(TrafficHeader, "2.0")); got != "1.0" {
			t.Errorf("without traffic the header chose %s", got)
		}
		h.setTraffic(t, Traffic{Labels: map[string]string{"canary": "2.0"}, Weights: map[string]float64{"3.0": 100}})
		for value, want := range map[string]string{"2.0": "2.0", " canary ": "2.0", "1.0": "1.0", "": "3.0", "9": "Model version: 9 does not exist for model: m"} {
			if got := h.goes(t, "", headers("X-Flambeau-Version", value)); got != want {
				t.Errorf("%q goes to %q, want %q", value, got, want)
			}
		}
		if got := h.goes(t, "1.0", headers("X-Flambeau-Version", "2.0")); got != "1.0" {
			t.Errorf("the path does not go before the header: %s", got)
		}
		_, err := h.Route(infer.ModelRef{Name: "m"}, headers(TrafficHeader, "x\ny"), nil)
		f, ok := errors.AsType[*fault.Error](err)
		if !ok || !strings.Contains(f.Hint, `"x\ny"`) {
			t.Errorf("%+v", f)
		}
		h.setTraffic(t, Traffic{Header: "X-Which"})
		if got := h.goes(t, "", headers("x-which", "2.0")) + h.goes(t, "", headers(TrafficHeader, "2.0")); got != "2.01.0" {
			t.Errorf("with a header of its own: %s", got)
		}
		h.end(t)
	})
}

// TestWeights: the percents hold, the same user stays, and a weight that grows takes from the rest only.
func TestWeights(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const users = 20000
		h, _ := threeVersions(t)
		labels := map[string]string{"canary": "2.0"}
		holds := func(count map[string]int, version string, percent float64) {
			t.Helper()
			share := float64(count[version]) * 100 / users
			if sigma := 100 * math.Sqrt(percent/100*(1-percent/100)/users); math.Abs(share-percent) > 4*sigma+.01 {
				t.Errorf("%s gets %.2f %%, want %v", version, share, percent)
			}
		}
		h.setTraffic(t, Traffic{Labels: labels, Weights: map[string]float64{"canary": 10, "3.0": 33.333}, Sticky: "cookie:uid"})
		first, count := h.spread(t, users)
		holds(count, "2.0", 10)
		holds(count, "3.0", 33.333)
		holds(count, "1.0", 56.667)
		if again, _ := h.spread(t, users); !slices.Equal(first, again) {
			t.Error("users do not stay where they are")
		}
		h.setTraffic(t, Traffic{Labels: labels, Weights: map[string]float64{"canary": 20, "3.0": 33.333}, Sticky: "cookie:uid"})
		second, count := h.spread(t, users)
		holds(count, "2.0", 20)
		moved := 0
		for i := range first {
			if first[i] != second[i] {
				moved++
				if first[i] != "1.0" || second[i] != "2.0" {
					t.Fatalf("user %d moved from %s to %s", i, first[i], second[i])
				}
			}
		}
		holds(map[string]int{"moved": moved}, "moved", 10)
		if d := h.describe(t, "m"); math.Abs(d.Weight-46.667) > 1e-9 {
			t.Errorf("the default version says %v", d.Weight)
		}
		h.end(t)
	})
}

func TestWeightsWithoutKeysAreByChance(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h, _ := threeVersions(t)
		h.setTraffic(t, Traffic{Weights: map[string]float64{"2.0": 25}, Sticky: "header:X-User"})
		count := map[string]int{}
		for range 8000 {
			count[h.goes(t, "", noHeader)]++
		}
		if count["2.0"] < 1700 || count["2.0"] > 2300 {
			t.Errorf("%v", count)
		}
		of := h.goes(t, "", headers("x-user", "u"))
		for range 100 {
			if got := h.goes(t, "", headers("x-user", "u")); got != of {
				t.Fatalf("the same user got %s and %s", of, got)
			}
		}
		h.end(t)
	})
}

// TestLayOut: whatever weights follow on whatever others, each gets exactly its width, and no more moves than must.
func TestLayOut(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2)) //nolint:gosec // the same numbers in each run
	var before []share
	old := map[string]int{}
	for step := range 2000 {
		wanted, left := map[string]int{}, everything
		for _, target := range []string{"a", "b", "c", "d", "e"} {
			if r.IntN(4) > 0 {
				if n := r.IntN(left + 1); n > 0 {
					wanted[target] = n
					left -= n
				}
			}
		}
		after := layOut(before, wanted)
		owner := func(shares []share) []string {
			of := make([]string, everything/100)
			for _, s := range shares {
				for i := (s.from + 99) / 100; i*100 < s.to; i++ {
					of[i] = s.of
				}
			}
			return of
		}
		width, end := map[string]int{}, 0
		for _, s := range after {
			if s.from < end || s.to <= s.from || s.to > everything {
				t.Fatalf("step %d: %v", step, after)
			}
			end = s.to
			width[s.of] += s.to - s.from
		}
		if diff := cmp.Diff(wanted, width); diff != "" {
			t.Fatalf("step %d: %s", step, diff)
		}
		must := 0 // what grows
		for target, n := range wanted {
			must += max(n-old[target], 0)
		}
		moved, was, is := 0, owner(before), owner(after)
		for i := range was {
			if was[i] != is[i] && is[i] != "" {
				moved += 100
			}
		}
		if slack := 200 * (len(after) + len(before)); moved > must+slack { // the ends of the shares are no round hundreds
			t.Fatalf("step %d: %d moved, %d had to: %v → %v", step, moved, must, before, after)
		}
		before, old = after, wanted
	}
}

func TestTrafficIsChecked(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h, told := threeVersions(t)
		many := map[string]string{}
		for i := range mostTargets + 1 {
			many[fmt.Sprintf("l%d", i)] = "1.0"
		}
		nan := math.NaN()
		for want, tr := range map[string]Traffic{
			`"Stable" cannot be a label`:              {Labels: map[string]string{"Stable": "1.0"}},
			`"2" cannot be a label`:                   {Labels: map[string]string{"2": "1.0"}},
			`"all" cannot be a label`:                 {Labels: map[string]string{"all": "1.0"}},
			`"default" cannot be a label`:             {Labels: map[string]string{"default": "1.0"}},
			`the label "x" has no version`:            {Labels: map[string]string{"x": ""}},
			`label "x": the model m has no version`:   {Labels: map[string]string{"x": "9"}},
			`weight: the model m has no version "x"`:  {Weights: map[string]float64{"x": 1}},
			`weight: the model m has no version "9"`:  {Weights: map[string]float64{"9": 1}},
			`the weight of "2.0" is -1`:               {Weights: map[string]float64{"2.0": -1}},
			`the weight of "2.0" is 100.1`:            {Weights: map[string]float64{"2.0": 100.1}},
			`the weight of "2.0" is NaN`:              {Weights: map[string]float64{"2.0": nan}},
			`the weight of "2.0" is 1e+300`:           {Weights: map[string]float64{"2.0": 1e300}},
			`the least one is 0.001`:                  {Weights: map[string]float64{"2.0": 1e-9}},
			`a weight has no version`:                 {Weights: map[string]float64{"": 1}},
			`the weights sum up to 100.001 %`:         {Weights: map[string]float64{"2.0": 50, "1.0": 50.001}},
			`header is "a b"`:                         {Header: "a b"},
			`sticky is "uid"`:                         {Sticky: "uid"},
			`sticky is "cookie:"`:                     {Sticky: "cookie:"},
			`sticky is "query:uid"`:                   {Sticky: "query:uid"},
			`at most 64 labels`:                       {Labels: many},
			`weight: the model m has no version "no"`: {Labels: map[string]string{"x": "1.0"}, Weights: map[string]float64{"no": 1}},
		} {
			err := h.SetTraffic(t.Context(), "m", tr)
			if err == nil || !strings.Contains(err.Error(), want) || !fault.Is(err, fault.BadRequest, fault.VersionNotFound) {
				t.Errorf("want %q, got %v", want, err)
			}
		}
		for _, err := range []error{h.SetTraffic(t.Context(), "x", Traffic{}), second(h.Traffic("x")), second(h.Route(infer.ModelRef{Name: "x"}, noHeader, nil))} {
			if !fault.Is(err, fault.ModelNotFound) {
				t.Errorf("unknown model: %v", err)
			}
		}
		if got, err := h.Traffic("m"); err != nil || !got.IsZero() || got.Labels == nil || got.Weights == nil || len(*told) != 0 {
			t.Errorf("%+v %v %v", got, err, *told)
		}
		h.end(t)
	})
}

func second[T any](_ T, err error) error { return err }

// TestVersionThatGoes takes its labels and weights with it, and is told.
func TestVersionThatGoes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h, told := threeVersions(t)
		h.setTraffic(t, Traffic{
			Labels: map[string]string{"stable": "1.0", "canary": "2.0"}, Weights: map[string]float64{"canary": 50, "2.0": 25, "3.0": 25}, Sticky: "cookie:uid",
		})
		ctx := WithActor(t.Context(), Actor{Who: "store"})
		if err := h.Unregister(ctx, infer.ModelRef{Name: "m", Version: "2.0"}); err != nil {
			t.Fatal(err)
		}
		got, err := h.Traffic("m")
		got.Spread = nil
		want := Traffic{Labels: map[string]string{"stable": "1.0"}, Weights: map[string]float64{"3.0": 25}, Sticky: "cookie:uid"}
		if diff := cmp.Diff(want, got); err != nil || diff != "" {
			t.Errorf("%v %s", err, diff)
		}
		if _, count := h.spread(t, 1000); count["1.0"] < 650 || count["3.0"] < 150 || len(count) != 2 {
			t.Errorf("%v", count)
		}
		if len(*told) != 2 || (*told)[1].Reason != "label canary removed (was 2.0), weight 2.0 removed (was 25 %), weight canary removed (was 50 %)" ||
			(*told)[1].Actor.Who != "store" {
			t.Errorf("told %+v", *told)
		}
		for _, v := range []string{"3.0", "1.0"} {
			if err := h.Unregister(ctx, infer.ModelRef{Name: "m", Version: v}); err != nil {
				t.Fatal(err)
			}
		}
		register(t, h, Spec{URL: "1.0", Synchronous: true})
		if got, err := h.Traffic("m"); err != nil || !got.IsZero() || len(*told) != 4 {
			t.Errorf("a model that comes anew has %+v, %v; told %+v", got, err, *told)
		}
		h.end(t)
	})
}

// TestVersionWithoutWorkers gets nothing by its weight, and everything that names it.
func TestVersionWithoutWorkers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h, _ := threeVersions(t)
		h.setTraffic(t, Traffic{Weights: map[string]float64{"2.0": 100}})
		if err := h.Scale(t.Context(), infer.ModelRef{Name: "m", Version: "2.0"}, 0, 0, true); err != nil {
			t.Fatal(err)
		}
		if got := h.goes(t, "", noHeader) + h.goes(t, "", headers(TrafficHeader, "2.0")) + h.goes(t, "2.0", noHeader); got != "1.02.02.0" {
			t.Errorf("went to %s", got)
		}
		h.end(t)
	})
}

// TestRestoredTraffic keeps users where they were, also when the versions come later than the settings.
func TestRestoredTraffic(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h, _ := threeVersions(t)
		h.setTraffic(t, Traffic{Weights: map[string]float64{"2.0": 10, "3.0": 10}, Sticky: "cookie:uid"})
		h.setTraffic(t, Traffic{Weights: map[string]float64{"2.0": 30, "3.0": 10}, Sticky: "cookie:uid", Labels: map[string]string{"canary": "2.0"}})
		before, _ := h.spread(t, 3000)
		kept, err := h.Traffic("m")
		if err != nil {
			t.Fatal(err)
		}
		text, err := json.Marshal(kept)
		if err != nil {
			t.Fatal(err)
		}
		var read Traffic
		if err := json.Unmarshal(text, &read); err != nil {
			t.Fatal(err)
		}
		h.end(t)

		told := 0
		fresh := newHouse(t, &backendtest.Launcher{}, archives{"1.0": named("m", "1.0"), "2.0": named("m", "2.0"), "3.0": named("m", "3.0")}, func(o *Options) {
			o.Changed = func(c Change) {
				if c.Kind == ChangeTraffic {
					told++
				}
			}
		})
		if err := fresh.RestoreTraffic(map[string]Traffic{"m": read, "bad": {Sticky: "x"}}); err == nil || !strings.Contains(err.Error(), "bad: sticky") {
			t.Errorf("what cannot be restored: %v", err)
		}
		register(t, fresh, Spec{URL: "1.0", Synchronous: true})
		if _, count := fresh.spread(t, 100); len(count) != 1 {
			t.Errorf("versions that are not there get requests: %v", count)
		}
		if d := fresh.describe(t, "m"); d.Weight != 100 {
			t.Errorf("the only version gets %v", d.Weight)
		}
		read.Header = "x-v"
		fresh.setTraffic(t, read) // what waits for its version may be set again
		register(t, fresh, Spec{URL: "3.0", Synchronous: true})
		register(t, fresh, Spec{URL: "2.0", Synchronous: true})
		if after, _ := fresh.spread(t, 3000); !slices.Equal(before, after) {
			t.Error("users were moved by the restart")
		}
		if told != 1 {
			t.Errorf("%d changes were told, want that of the header", told)
		}
		fresh.end(t)
	})
}

func TestTrafficIsCleared(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h, told := threeVersions(t)
		h.setTraffic(t, Traffic{Labels: map[string]string{"canary": "2.0"}, Weights: map[string]float64{"canary": 100}})
		h.setTraffic(t, Traffic{})
		h.setTraffic(t, Traffic{}) // changes nothing, and is not told
		if got := h.goes(t, "", noHeader); got != "1.0" || len(*told) != 2 || (*told)[1].Reason != "label canary removed (was 2.0), weight canary removed (was 100 %)" {
			t.Errorf("%s %+v", got, *told)
		}
		h.end(t)
	})
}

func TestSpreadThatMakesNoSense(t *testing.T) {
	got := fromSpread([]Share{
		{"a", 0, 10}, {"b", 5, 6}, {"c", -1, 5}, {"d", 20, 20}, {"e", 50, 101}, {"f", math.NaN(), 1}, {"g", 0, math.Inf(1)}, {"h", 20, 30}, {"i", 12, 20},
	})
	if diff := cmp.Diff([]share{{"a", 0, 10000}, {"i", 12000, 20000}, {"h", 20000, 30000}}, got, cmp.AllowUnexported(share{})); diff != "" {
		t.Error(diff)
	}
}

// TestPointsAreForEver: a release that moved them would move users.
func TestPointsAreForEver(t *testing.T) {
	for key, want := range map[string]int{"user-1": 39465, "user-2": 48686} {
		if got := pointOf("m", key); got != want {
			t.Errorf("%q lies at %d, want %d", key, got, want)
		}
	}
}

func BenchmarkRoute(b *testing.B) {
	r, err := newRoutes(Traffic{Weights: map[string]float64{"2.0": 10}, Sticky: "cookie:uid"}, nil)
	if err != nil {
		b.Fatal(err)
	}
	header := headers("cookie", "a=b; uid=user-1; c=d")
	for b.Loop() {
		r.pick("m", header, nil)
	}
}

// FuzzTraffic: whatever is kept or sent, and whatever cookies come, shares lie side by side within the hundred percent and a target is one of them.
func FuzzTraffic(f *testing.F) {
	f.Add(`{"labels": {"canary": "2.0"}, "weights": {"canary": 10, "3.0": 0.001}, "sticky": "cookie:uid"}`, "a=b; uid=7;;=; uid")
	f.Add(`{"weights": {"a": 100}, "sticky": "header:x", "spread": [{"of": "a", "from": 50, "to": 100}, {"of": "b", "from": 0, "to": 1e300}]}`, "x")
	f.Add(`{"weights": {"a": 33.3333, "b": 66.6667}, "spread": [{"of": "b", "from": 10, "to": 20}, {"of": "b", "from": 15, "to": 30}]}`, "")
	f.Fuzz(func(t *testing.T, text, header string) {
		var tr Traffic
		if json.Unmarshal([]byte(text), &tr) != nil {
			return
		}
		r, err := newRoutes(tr, nil)
		if err != nil {
			return
		}
		end := 0
		for _, s := range r.shares {
			if s.from < end || s.to <= s.from || s.to > everything || tr.Weights[s.of] <= 0 {
				t.Fatalf("%s: %v", text, r.shares)
			}
			end = s.to
		}
		target := r.pick("m", func(string) string { return header }, nil)
		if _, ok := tr.Weights[target]; target != "" && !ok {
			t.Fatalf("%s: %q gets the request", text, target)
		}
		again, err := newRoutes(r.copy(), nil)
		if diff := cmp.Diff(r.shares, again.shares, cmp.AllowUnexported(share{})); err != nil || diff != "" {
			t.Fatalf("what is kept is not what is restored: %v %s", err, diff)
		}
	})
}
