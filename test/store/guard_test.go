package store

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/flambeau-serve/flambeau/test/e2e"
)

// shortOfMemory gives a command that runs another one which sees a machine with little memory left.
func shortOfMemory(t *testing.T, box *e2e.Box, kilobytes int) []string {
	t.Helper()
	seen := filepath.Join(box.Dir, "meminfo")
	text := fmt.Sprintf("MemTotal: 16000000 kB\nMemFree: %d kB\nMemAvailable: %d kB\n", kilobytes, kilobytes)
	if err := os.WriteFile(seen, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return mounted(t, fmt.Sprintf(`mount --bind "%s" /proc/meminfo`, seen))
}

// TestMemoryGuard lets a model that holds much memory be replaced where there is no room for two: the old one goes on, and the reason says what is
// there, what is needed, and what to do. A model that is replaced in place needs no room.
func TestMemoryGuard(t *testing.T) {
	box := e2e.NewBox(t)
	heavy := func(number int, config string) string {
		t.Helper()
		a := e2e.Numbered(model, number, `self.held = b"x" * (100 << 20)`)
		a.Config = config
		content := a.Bytes(t)
		box.Put(t, file, content)
		return e2e.Digest(content)
	}
	heavy(0, "")
	s := startWrapped(t, box, shortOfMemory(t, box, 60_000))
	requireAnswer(t, s, predict, 0)
	load := s.StartLoad(t, e2e.LoadOptions{Clients: 2, Path: predict})
	refused := requireEvent(t, s, heavy(1, ""), "refused", "swap_failed")
	requireSays(t, "the reason", refused.Reason, []string{"would not fit", "58 MiB are left", "swap: in_place"})
	if !e2e.Eventually(patience, func() bool { return strings.Contains(s.InStore(t, file).Why, "swap: in_place") }) {
		t.Errorf("the list of the store does not say what to do: %+v", s.InStore(t, file))
	}
	if got := answer(t, s, predict); got != "0" {
		t.Errorf("answer %s", got)
	}
	s.RequireServing(t, model, heavy(2, "swap: in_place\n"))
	requireAnswer(t, s, predict, 2)
	requireFlawless(t, load)
}
