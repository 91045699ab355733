package deploy

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/flambeau-serve/flambeau/modelstore/rollout"
)

// A copy that was fetched for a client is loaded neither before its model is registered nor after it was unregistered, whatever the watcher says meanwhile.
func TestClientsCopyIsLeftAlone(t *testing.T) {
	in(t, nil, func(b *bench, run func()) {
		run()
		b.store.lend("m.mar", true)
		b.store.put(map[string]file{"m.mar": mar("a", "m", "1.0")})
		b.after(time.Minute, "") // it is unpacked, and its requirements are installed
		b.wantDecision("m.mar", DecisionNotWatched, "removed with that")
		if _, err := b.Register(t.Context(), rollout.Spec{URL: "https://models/m.mar#a", Name: "other", Version: "1.0"}); err != nil {
			t.Fatal(err)
		}
		b.after(time.Minute, "other/1.0 a*")
		if err := b.Unregister(t.Context(), ref("other", "")); err != nil {
			t.Fatal(err)
		}
		b.after(time.Minute, "") // its workers end
		b.store.lend("m.mar", false)
		b.poke() // the watcher has something else to tell before it sees that the file has gone
		b.after(time.Millisecond, "")
		b.store.remove("m.mar")
		b.after(time.Minute, "")
		if n := b.store.opens("m.mar"); n > 0 {
			t.Errorf("it was opened %d times", n)
		}
		if events := b.events(); len(events) > 0 {
			t.Errorf("events %q", events)
		}
		b.store.put(map[string]file{"m.mar": mar("a", "m", "1.0")}) // somebody puts it there
		b.after(time.Second, "m/1.0 a*")
	})
}

// A copy that somebody writes over is an archive of the store, and what a client has registered from it follows it.
func TestClientsCopyThatChanges(t *testing.T) {
	in(t, nil, func(b *bench, run func()) {
		run()
		b.store.lend("m.mar", true)
		b.store.put(map[string]file{"m.mar": mar("a", "m", "1.0")})
		b.models.swap(ref("m", "1.0"), rollout.Spec{Archive: (&file{digest: "a", name: "m", version: "1.0"}).archive("m.mar")})
		b.after(time.Minute, "m/1.0 a*")
		b.store.lend("m.mar", false)
		b.store.put(map[string]file{"m.mar": mar("b", "m", "1.0")})
		b.after(time.Second, "m/1.0 b*")
		b.wantDecision("m.mar", DecisionServing)
		if diff := cmp.Diff([]string{"store: deploy m/1.0 b"}, b.models.log()); diff != "" {
			t.Error(diff)
		}
	})
}

// A copy that its owner leaves behind is an archive of the store.
func TestClientsCopyThatIsLeftBehind(t *testing.T) {
	in(t, nil, func(b *bench, run func()) {
		run()
		b.store.lend("m.mar", true)
		b.store.put(map[string]file{"m.mar": mar("a", "m", "1.0")})
		b.after(time.Minute, "")
		b.store.lend("m.mar", false)
		b.poke()
		b.after(lookAgain/2, "")
		b.after(lookAgain, "m/1.0 a*")
		b.wantDecision("m.mar", DecisionServing)
	})
}
