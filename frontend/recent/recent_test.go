package recent

import (
	"fmt"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

var noon = time.Date(2026, 1, 2, 12, 0, 0, 0, time.UTC)

// request is the n-th of a model, a second after the one before, and took that many milliseconds.
func request(n, took int) *Request {
	return &Request{ID: strconv.Itoa(n), Model: "m", Arrived: noon.Add(time.Duration(n) * time.Second), Total: time.Duration(took) * time.Millisecond}
}

func ids(all []Request) []string {
	var names []string
	for i := range all {
		names = append(names, all[i].ID)
	}
	return names
}

func TestSlowest(t *testing.T) {
	b := New(Options{Latest: 2, Slowest: 3})
	for n, took := range []int{5, 1, 9, 3, 7, 2} {
		b.Note(request(n, took))
	}
	if diff := cmp.Diff([]string{"2", "4", "0"}, ids(b.Slow("m", time.Time{}, 10))); diff != "" {
		t.Error(diff)
	}
	if diff := cmp.Diff([]string{"2"}, ids(b.Slow("m", time.Time{}, 1))); diff != "" {
		t.Error(diff)
	}
	if diff := cmp.Diff([]string{"4"}, ids(b.Slow("m", noon.Add(3*time.Second), 10))); diff != "" {
		t.Error(diff)
	}
	if got := b.Slow("other", time.Time{}, 10); len(got) != 0 {
		t.Errorf("of a model that nobody asked: %v", ids(got))
	}
}

func TestOldSlowOnesMakeRoom(t *testing.T) {
	b := New(Options{Slowest: 2, Age: 10 * time.Second})
	for n, took := range []int{900, 800} {
		b.Note(request(n, took))
	}
	for n := 2; n < 11; n++ { // faster than both, which are not old yet
		b.Note(request(n, 1))
	}
	if diff := cmp.Diff([]string{"0", "1"}, ids(b.Slow("m", time.Time{}, 10))); diff != "" {
		t.Error(diff)
	}
	b.Note(request(11, 1)) // the first one is old now
	b.Note(request(12, 2)) // and the second
	if diff := cmp.Diff([]string{"12", "11"}, ids(b.Slow("m", time.Time{}, 10))); diff != "" {
		t.Error(diff)
	}
}

func TestFind(t *testing.T) {
	b := New(Options{Latest: 3, Slowest: 1})
	b.Note(request(0, 50))
	for n := 1; n < 8; n++ {
		b.Note(request(n, n))
	}
	again := request(0, 1)
	again.Arrived, again.Model = noon.Add(time.Hour), "other"
	b.Note(again)
	found := b.Find("0")
	if len(found) != 2 || found[0].Model != "m" || found[1].Model != "other" {
		t.Errorf("of two models: %+v", found)
	}
	for id, want := range map[string]int{"4": 0, "5": 1, "7": 1, "none": 0} {
		if got := len(b.Find(id)); got != want {
			t.Errorf("%s: found %d, want %d", id, got, want)
		}
	}
	b.Forget("m")
	if found := b.Find("7"); len(found) != 0 {
		t.Errorf("of a forgotten model: %+v", found)
	}
}

func TestOneRequestIsFoundOnce(t *testing.T) {
	b := New(Options{})
	b.Note(request(1, 10)) // it is among the latest and among the slowest
	if got := len(b.Find("1")); got != 1 {
		t.Errorf("found %d times", got)
	}
}

func TestConcurrentUse(t *testing.T) {
	b := New(Options{Latest: 10, Slowest: 5})
	var all sync.WaitGroup
	for w := range 4 {
		all.Go(func() {
			for n := range 500 {
				r := request(n, n%97)
				r.Model = fmt.Sprint("m", w%2)
				b.Note(r)
				b.Find("7")
				b.Slow(r.Model, time.Time{}, 3)
			}
		})
	}
	all.Wait()
	if got := b.Slow("m0", time.Time{}, 10); len(got) != 5 || got[0].Total != 96*time.Millisecond {
		t.Errorf("%+v", got)
	}
}

func BenchmarkNote(b *testing.B) {
	book := New(Options{})
	r := request(1, 5)
	b.ReportAllocs()
	for i := range b.N {
		r.Total = time.Duration(i % 1000)
		book.Note(r)
	}
}

// TestModelsAreBounded also when requests are noted of models that were removed while they ran.
func TestModelsAreBounded(t *testing.T) {
	b := New(Options{Models: 3})
	note := func(model string, n int) {
		r := request(n, 1)
		r.Model = model
		b.Note(r)
	}
	note("stays", 0)
	for n := range 20 {
		model := fmt.Sprint("gone", n)
		note(model, 3*n+1)
		b.Forget(model)
		note(model, 3*n+2) // it was under way
		note("stays", 3*n+3)
	}
	if len(b.models) != 3 || len(b.Slow("stays", time.Time{}, 100)) != 21 || len(b.Slow("gone19", time.Time{}, 100)) != 1 || len(b.Slow("gone17", time.Time{}, 100)) != 0 {
		t.Errorf("%d models are remembered", len(b.models))
	}
}
