package poison

import (
	"encoding/hex"
	"errors"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/flambeau-serve/flambeau/internal/fault"
	"github.com/flambeau-serve/flambeau/internal/infer"
)

func item(id, body string) *infer.Item {
	return &infer.Item{ID: id, Parts: []infer.Part{{Name: "body", ContentType: "text/plain", Data: []byte(body)}}}
}

func refused(t *testing.T, b *Book, model infer.ModelRef, it *infer.Item) bool {
	t.Helper()
	_, err := b.Check(model, it)
	if err != nil && !fault.Is(err, fault.Poisoned) {
		t.Fatal(err)
	}
	return err != nil
}

func TestBook(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := New(Options{Lift: "run `flambeau lift m`."})
		if m, err := b.Check(ref, item("a", "x")); err != nil || m.Suspect() {
			t.Error(err)
		}
		b.Killed(ref, item("a", "x"), Death{Workers: 1, How: "killed by signal 6 (aborted)"})
		m, err := b.Check(ref, item("b", "x"))
		if err != nil || !m.Suspect() {
			t.Errorf("after one death: %+v, %v", m, err)
		}
		time.Sleep(time.Minute)
		b.Killed(ref, item("c", "x"), Death{Workers: 1, How: "killed by signal 6 (aborted)"})
		time.Sleep(12 * time.Second)
		_, err = b.Check(ref, item("d", "x"))
		f, ok := errors.AsType[*fault.Error](err)
		if !ok || f.Kind != fault.Poisoned || fault.HTTPStatus(err) != 500 {
			t.Fatal(err)
		}
		until := time.Now().Add(DefaultKeep - 12*time.Second).UTC().Format(time.RFC3339)
		want := "Worker died. The same request has ended 2 workers of the model m/1.0, the last one 12s ago (killed by signal 6 (aborted)). It is refused until " + until + "."
		if f.Message != want || !strings.Contains(f.Hint, "request c") || !strings.Contains(f.Hint, "run `flambeau lift m`") {
			t.Errorf("%s\n%s\nwant %s", f.Message, f.Hint, want)
		}
		for name, other := range map[string]*infer.Item{
			"another body": item("a", "y"), "another type": {Parts: []infer.Part{{Name: "body", ContentType: "text/html", Data: []byte("x")}}},
			"another name": {Parts: []infer.Part{{Name: "data", ContentType: "text/plain", Data: []byte("x")}}}, "nothing": {},
			"cut elsewhere": {Parts: []infer.Part{{Name: "bod", ContentType: "ytext/plain", Data: []byte("x")}}},
		} {
			if refused(t, b, ref, other) {
				t.Errorf("%s is refused", name)
			}
		}
		same := item("e", "x")
		same.Header = []infer.Field{{Name: "date", Value: "today"}}
		if !refused(t, b, ref, same) || refused(t, b, infer.ModelRef{Name: "m", Version: "2.0"}, same) {
			t.Error("headers count, or the version does not")
		}
		if got := b.List(ref); len(got) != 1 || got[0].Deaths != 2 || !got[0].Refuse || got[0].ID != "c" || got[0].Bytes != 1 || len(got[0].Digest) != 64 {
			t.Errorf("%+v", got)
		}
		time.Sleep(DefaultKeep - 12*time.Second)
		if refused(t, b, ref, same) || len(b.List(ref)) != 0 || !b.empty.Load() {
			t.Error("it is refused for ever")
		}
	})
}

// A request that is answered once is not what ends workers.
func TestAnsweredIsForgotten(t *testing.T) {
	t.Parallel()
	b := New(Options{})
	b.Killed(ref, item("a", "x"), Death{})
	m, err := b.Check(ref, item("b", "x"))
	if err != nil {
		t.Fatal(err)
	}
	b.Answered(m)
	b.Answered(Mark{})
	b.Killed(ref, item("c", "x"), Death{})
	if refused(t, b, ref, item("d", "x")) {
		t.Error("the first death counts")
	}
	b.Killed(ref, item("e", "x"), Death{})
	if !refused(t, b, ref, item("f", "x")) {
		t.Error("two in succession do not")
	}
}

// Another generation begins with nothing, also when a worker of the old one ends later.
func TestGenerations(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := New(Options{})
		sent := time.Now()
		two := Death{Workers: 2, Sent: sent}
		b.Killed(ref, item("a", "x"), two)
		other := infer.ModelRef{Name: "other", Version: "1.0"}
		b.Killed(other, item("a", "x"), two)
		time.Sleep(time.Second)
		if n := b.Begin(ref); n != 1 || refused(t, b, ref, item("b", "x")) || !refused(t, b, other, item("b", "x")) {
			t.Errorf("%d forgotten", n)
		}
		b.Killed(ref, item("a", "x"), two)
		if refused(t, b, ref, item("b", "x")) {
			t.Error("a worker of the old generation counts")
		}
		b.Killed(ref, item("a", "x"), Death{Workers: 2, Sent: time.Now()})
		if !refused(t, b, ref, item("b", "x")) {
			t.Error("a worker of the new generation does not count")
		}
		if n := b.Forget(ref); n != 1 || refused(t, b, ref, item("b", "x")) || len(b.models) != 1 {
			t.Errorf("%d forgotten, %v", n, b.models)
		}
		if b.Forget(ref) != 0 || b.Forget(other) != 1 || !b.empty.Load() {
			t.Error("not everything is forgotten")
		}
	})
}

func TestLift(t *testing.T) {
	t.Parallel()
	b := New(Options{})
	for _, body := range []string{"x", "y"} {
		b.Killed(ref, item("a", body), Death{Workers: 2})
	}
	key := digestOf(item("", "x"))
	if n := b.Lift(ref, hex.EncodeToString(key[:4])); n != 1 || refused(t, b, ref, item("b", "x")) || !refused(t, b, ref, item("b", "y")) {
		t.Errorf("%d lifted", n)
	}
	if b.Lift(ref, "") != 0 || b.Lift(infer.ModelRef{}, "a") != 0 || b.Lift(ref, strings.Repeat("0", 65)) != 0 {
		t.Error("something was lifted")
	}
}

// What is remembered is bounded: what is over goes first, then the oldest.
func TestBound(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := New(Options{Most: 3, Keep: time.Minute})
		for i := range 10 {
			b.Killed(infer.ModelRef{Name: strconv.Itoa(i % 2)}, item("a", strconv.Itoa(i)), Death{Workers: 2})
			time.Sleep(time.Second)
		}
		if b.count != 3 {
			t.Errorf("%d are remembered", b.count)
		}
		for i := range 10 {
			if got := refused(t, b, infer.ModelRef{Name: strconv.Itoa(i % 2)}, item("b", strconv.Itoa(i))); got != (i >= 7) {
				t.Errorf("%d: %t", i, got)
			}
		}
		time.Sleep(time.Minute)
		b.Killed(infer.ModelRef{Name: "0"}, item("a", "new"), Death{Workers: 2})
		if b.count != 1 {
			t.Errorf("%d are remembered after all but one were over", b.count)
		}
	})
}

func TestNothingIsRemembered(t *testing.T) {
	t.Parallel()
	b := New(Options{Keep: -1})
	b.Killed(ref, item("a", "x"), Death{Workers: 5})
	if refused(t, b, ref, item("b", "x")) || b.count != 0 {
		t.Error("it is remembered")
	}
}

// A Book of which nothing is known costs nothing, and one with something only those of the same size.
func TestCheckIsCheap(t *testing.T) {
	b := New(Options{})
	it := item("a", strings.Repeat("x", 1<<20))
	check := func() {
		if _, err := b.Check(ref, it); err != nil {
			t.Fatal(err)
		}
	}
	if n := testing.AllocsPerRun(100, check); n != 0 {
		t.Errorf("%v allocations while nothing is remembered", n)
	}
	b.Killed(ref, item("a", "small"), Death{Workers: 2})
	if n := testing.AllocsPerRun(100, check); n != 0 { // a hash would allocate
		t.Errorf("%v allocations for another size", n)
	}
}

// TestHashedOnce: a request is hashed when its size is remembered for the first time, and never again, whatever is found out meanwhile.
func TestHashedOnce(t *testing.T) { // not parallel: it counts allocations
	b := New(Options{})
	it := item("a", "large")
	m, err := b.Check(ref, it)
	if err != nil || m.key != nil {
		t.Fatalf("it was hashed while nothing is remembered: %v", err)
	}
	b.Killed(ref, item("b", "s"), Death{Workers: 2})
	if m, err = b.Again(ref, it, m); err != nil || m.key != nil {
		t.Fatalf("it was hashed while nothing of its size is remembered: %v", err)
	}
	b.Killed(ref, item("b", "other"), Death{Workers: 2})
	if m, err = b.Again(ref, it, m); err != nil || m.key == nil || m.Suspect() {
		t.Fatalf("%+v, %v", m, err)
	}
	key := m.key
	again := func() {
		if m, err = b.Again(ref, it, m); err != nil || m.key != key {
			t.Fatalf("it was hashed again: %v", err)
		}
	}
	b.Killed(ref, item("b", "third"), Death{Workers: 2})
	again()
	if n := testing.AllocsPerRun(100, again); n != 0 {
		t.Errorf("%v allocations while nothing was found out", n)
	}
	it.Parts[0].Data[0] = 'L' // a hash of now would tell
	b.Killed(ref, it, Death{Workers: 1, Mark: m})
	again()
	if !m.Suspect() {
		t.Error("what it has ended since is not seen")
	}
	b.Answered(m)
	if again(); m.Suspect() {
		t.Error("that it was answered since is not seen")
	}
	b.Killed(ref, it, Death{Workers: 2, Mark: m})
	for range 2 {
		if m, err = b.Again(ref, it, m); !fault.Is(err, fault.Poisoned) {
			t.Errorf("not refused: %v", err)
		}
	}
	b.Begin(ref)
	if again(); m.Suspect() {
		t.Error("another generation begins with something")
	}
}

// Requests without a payload differ by their headers, if at all: they are not remembered.
func TestNothingIsRememberedOfAnEmptyRequest(t *testing.T) {
	t.Parallel()
	for name, parts := range map[string][]infer.Part{"no parts": nil, "an empty one": {{Name: "body"}}} {
		b := New(Options{})
		one := &infer.Item{ID: "a", Parts: parts, Header: []infer.Field{{Name: "x-image", Value: "bad"}}}
		other := &infer.Item{ID: "b", Parts: parts, Header: []infer.Field{{Name: "x-image", Value: "good"}}}
		for range 2 {
			b.Killed(ref, one, Death{Workers: 1})
		}
		if refused(t, b, ref, other) || refused(t, b, ref, one) || len(b.List(ref)) != 0 {
			t.Errorf("%s: it is remembered", name)
		}
	}
}

func TestTogether(t *testing.T) {
	t.Parallel()
	b := New(Options{Most: 20})
	var all sync.WaitGroup
	for n := range 8 {
		all.Go(func() {
			for i := range 300 {
				model := infer.ModelRef{Name: strconv.Itoa(i % 3)}
				it := item("a", strconv.Itoa(i%40))
				switch (n + i) % 5 {
				case 0:
					b.Killed(model, it, Death{})
				case 1:
					b.Begin(model)
				case 2:
					b.List(model)
				default:
					m, _ := b.Check(model, it)
					b.Answered(m)
				}
			}
		})
	}
	all.Wait()
	count := 0
	for _, p := range b.models {
		sizes := map[int64]int{}
		for _, e := range p.entries {
			sizes[e.Bytes]++
		}
		if diff := cmp.Diff(sizes, p.sizes); diff != "" {
			t.Error(diff)
		}
		count += len(p.entries)
	}
	if count != b.count || count > 20 || b.empty.Load() != (count == 0) {
		t.Errorf("%d entries, counted %d, empty %t", count, b.count, b.empty.Load())
	}
}

// FuzzDigest: a digest says where each part begins and ends.
func FuzzDigest(f *testing.F) {
	f.Add("body", "text/plain", "xy", "body", "text/plainx", "y")
	f.Fuzz(func(t *testing.T, name1, type1, data1, name2, type2, data2 string) {
		one := &infer.Item{Parts: []infer.Part{{Name: name1, ContentType: type1, Data: []byte(data1)}}}
		two := &infer.Item{Parts: []infer.Part{{Name: name2, ContentType: type2, Data: []byte(data2)}}}
		both := &infer.Item{Parts: []infer.Part{one.Parts[0], two.Parts[0]}}
		same := name1 == name2 && type1 == type2 && data1 == data2
		if (digestOf(one) == digestOf(two)) != same || digestOf(both) == digestOf(one) {
			t.Errorf("%q and %q", one.Parts, two.Parts)
		}
	})
}
