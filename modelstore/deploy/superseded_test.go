package deploy

import (
	"errors"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// superseded is a version that the model's config.pbtxt does not want.
func superseded(digest, folder, number string) file {
	f := versioned(digest, folder, number)
	f.superseded = true
	return f
}

// A version that is not wanted any more serves until the one does that is.
func TestSupersededVersions(t *testing.T) {
	in(t, nil, func(b *bench, run func()) {
		b.models.breakDigest("bad", errors.New("no"))
		run()
		b.store.put(map[string]file{"m/1": superseded("a", "m", "1"), "m/2": versioned("b", "m", "2")})
		b.after(time.Second, "m/2 b*")
		b.wantDecision("m/1", DecisionSuperseded)
		b.store.put(map[string]file{"m/2": superseded("b", "m", "2"), "m/3": versioned("bad", "m", "3")})
		b.after(time.Minute, "m/2 b*")
		b.wantDecision("m/2", DecisionServing)
		b.models.log()
		b.store.put(map[string]file{"m/3": versioned("c", "m", "3")})
		b.after(time.Second, "m/3 c*")
		if diff := cmp.Diff([]string{"store: deploy m/3 c", "store: default m/3", "store: unregister m/2"}, b.models.log()); diff != "" {
			t.Error(diff)
		}
		b.wantDecision("m/2", DecisionSuperseded)
		b.store.put(map[string]file{"m/1": versioned("a", "m", "1")}) // another policy
		b.after(time.Second, "m/1 a, m/3 c*")
		b.store.put(map[string]file{"m/1": superseded("a", "m", "1"), "m/3": superseded("c", "m", "3")}) // one that names versions that are not there
		b.after(time.Second, "")
		b.store.remove("m/1", "m/2", "m/3")
		b.after(time.Minute, "")
	})
}
