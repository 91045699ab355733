package source

import (
	"net/http"
	"testing"

	"github.com/flambeau-serve/flambeau/internal/fault"
)

// TestPanicOfAFetch leaves nothing behind, and goes on to whoever has asked; the next fetch is as ever.
func TestPanicOfAFetch(t *testing.T) {
	t.Parallel()
	data := content(5000, 1)
	srv := serve(t, func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write(data) })
	b := newBench(t, everywhere)
	err := fault.Contain("an archive was fetched", func() {
		_, _, _, _ = b.Fetch(t.Context(), srv.URL+"/m.mar", b.dir, func(int64, int64) { panic("a bug of who is told how far it is") })
	})
	if !fault.Is(err, fault.Internal) {
		t.Errorf("%v", err)
	}
	if left := b.files(t); len(left) > 0 {
		t.Errorf("left: %q", left)
	}
	if got, err := b.get(t, srv.URL+"/m.mar"); err != nil || string(got) != string(data) {
		t.Errorf("%d bytes, %v", len(got), err)
	}
}
