package fault

import (
	"errors"
	"strings"
	"sync"
	"testing"
)

func TestContain(t *testing.T) {
	t.Parallel()
	if err := Contain("nothing was wrong", func() {}); err != nil {
		t.Error(err)
	}
	var mu sync.Mutex
	err := Contain("a list was read", func() {
		mu.Lock()
		defer mu.Unlock()
		beyond([]int{1})
	})
	if !mu.TryLock() {
		t.Error("the lock is held still")
	}
	f, ok := errors.AsType[*Error](err)
	if !ok || f.Kind != Internal || f.Message != "Internal error." || f.Hint == "" {
		t.Fatalf("%#v", err)
	}
	if !IsBug(err) || IsBug(New(Internal, "it cannot be read", nil)) || IsBug(nil) {
		t.Error("it is not told from other errors")
	}
	if DetailOf(err) != f.Detail || DetailOf(errors.New("another one")) != "" {
		t.Error("its detail is not found")
	}
	for _, want := range []string{"panic while a list was read: ", "out of range", "fault.beyond"} {
		if !strings.Contains(f.Detail, want) {
			t.Errorf("the detail does not say %q:\n%s", want, f.Detail)
		}
	}
}

//go:noinline
func beyond(list []int) int { return list[len(list)] }
