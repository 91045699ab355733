package store

import (
	"fmt"
	"net/http"
	"strconv"
	"testing"

	"github.com/flambeau-serve/flambeau/test/e2e"
)

// TestCanary sends a part of the requests to a canary: by percent, by a header, and with users kept where they are; also after the canary was
// replaced and the server started again.
func TestCanary(t *testing.T) {
	const requests, percent = 600, 25
	box := e2e.NewBox(t)
	version := func(version, number int) {
		t.Helper()
		a := e2e.Numbered(model, number, "")
		a.Version = strconv.Itoa(version)
		box.Put(t, fmt.Sprintf("m-%d.mar", version), a.Bytes(t))
	}
	version(1, 1)
	version(2, 2)
	s := start(t, box)
	requireAnswer(t, s, predict+"/1", 1)
	requireAnswer(t, s, predict, 2)
	s.MustAsk(t, http.StatusOK, http.MethodPut, s.Management+"/models/"+model+"/1/set-default", nil)
	s.MustAsk(t, http.StatusOK, http.MethodPut, s.Management+"/admin/models/"+model+"/traffic",
		[]byte(fmt.Sprintf(`{"labels": {"stable": "1", "canary": "2"}, "weights": {"canary": %d}, "sticky": "header:X-User"}`, percent)),
		"Content-Type", "application/json")
	ask := func(path string, header ...string) string {
		t.Helper()
		header = append(header, "Content-Type", octets)
		return string(s.MustAsk(t, http.StatusOK, http.MethodPost, s.Inference+path, []byte("x"), header...).Body)
	}
	users := map[int]string{}
	look := func(canary string) {
		t.Helper()
		count := map[string]int{}
		for range requests {
			count[ask(predict)]++
		}
		// Five standard deviations of a fair choice.
		if want := requests * percent / 100; count[canary] < want-53 || count[canary] > want+53 || count["1"]+count[canary] != requests {
			t.Errorf("answers %v; want about %d %s", count, want, canary)
		}
		if got := ask(predict, "X-Flambeau-Version", "canary"); got != canary {
			t.Errorf("by header: answer %s, want %s", got, canary)
		}
		if got := ask(predict + "/stable"); got != "1" {
			t.Errorf("by label: answer %s", got)
		}
		for user := range 50 {
			got := ask(predict, "X-User", fmt.Sprint("user-", user))
			if got != "1" {
				got = "canary"
			}
			if before, known := users[user]; known && before != got {
				t.Errorf("user %d had %s, now %s", user, before, got)
			}
			users[user] = got
		}
	}
	look("2")
	version(2, 20)
	requireAnswer(t, s, predict+"/2", 20)
	look("20")
	s.Stop(t)
	s = start(t, box)
	requireAnswer(t, s, predict+"/1", 1)
	requireAnswer(t, s, predict+"/2", 20)
	look("20")
}
