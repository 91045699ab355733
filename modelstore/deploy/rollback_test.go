package deploy

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/flambeau-serve/flambeau/internal/fault"
	"github.com/flambeau-serve/flambeau/internal/infer"
	"github.com/flambeau-serve/flambeau/modelstore/archive"
)

func TestRollback(t *testing.T) {
	remembered(t, nil, func(b *bench, run func()) {
		run()
		b.store.put(map[string]file{"m.mar": mar("sha256:aaaa", "m", "1.0"), "n.mar": mar("x", "n", "1.0")})
		b.after(time.Second, "m/1.0 sha256:aaaa*, n/1.0 x*")
		if _, err := b.Rollback(b.t.Context(), "m", "", ""); !fault.Is(err, fault.Conflict) {
			t.Errorf("there is nothing to go back to: %v", err)
		}
		b.store.put(map[string]file{"m.mar": mar("sha256:bbbb", "m", "1.0")})
		b.after(time.Second, "m/1.0 sha256:bbbb*, n/1.0 x*")
		b.events()
		if _, err := b.Rollback(b.t.Context(), "m", "", "cccc"); !fault.Is(err, fault.Conflict) {
			t.Errorf("an unknown digest: %v", err)
		}
		done, err := b.Rollback(b.t.Context(), "m", "", "")
		if err != nil || done.ToDigest != "sha256:aaaa" || done.FromDigest != "sha256:bbbb" || done.To != ref("m", "1.0") {
			t.Errorf("rolled back %+v, %v", done, err)
		}
		b.after(time.Hour, "m/1.0 sha256:aaaa*, n/1.0 x*")
		b.wantDecision("m.mar", DecisionRolledBack, "aaaa")
		b.wantEvent("rolled_back m/1.0: from bbbb to aaaa")
		b.store.put(map[string]file{"m.mar": mar("sha256:bbbb", "m", "1.0")}) // touched
		b.after(time.Hour, "m/1.0 sha256:aaaa*, n/1.0 x*")
		if _, err := b.Rollback(b.t.Context(), "m", "", ""); !fault.Is(err, fault.Conflict) {
			t.Errorf("it goes back and forth: %v", err)
		}
	}, func(b *bench, run func()) {
		b.store.put(map[string]file{"m.mar": mar("sha256:bbbb", "m", "1.0"), "n.mar": mar("x", "n", "1.0")})
		b.begin()
		run()
		b.after(time.Second, "m/1.0 sha256:aaaa*, n/1.0 x*")
		b.wantDecision("m.mar", DecisionRolledBack)
		b.store.put(map[string]file{"m.mar": mar("sha256:cccc", "m", "1.0")})
		b.after(time.Second, "m/1.0 sha256:cccc*, n/1.0 x*")
		if s := b.opts.Ledger.State(); len(s.Ignored)+len(s.Pinned) > 0 {
			t.Errorf("the ledger has %+v", s)
		}
		if _, err := b.Rollback(b.t.Context(), "m", "", "aaa"); err != nil {
			t.Errorf("back to an older one by its digest: %v", err)
		}
		b.after(time.Second, "m/1.0 sha256:aaaa*, n/1.0 x*")
		if err := b.Reload(b.t.Context(), "m"); err != nil {
			t.Fatal(err)
		}
		b.after(0, "m/1.0 sha256:cccc*, n/1.0 x*")
	})
}

func TestRollbackAcrossVersionsOfAFile(t *testing.T) {
	in(t, nil, func(b *bench, run func()) {
		run()
		b.store.put(map[string]file{"m.mar": mar("a", "m", "1.0")})
		b.after(time.Second, "m/1.0 a*")
		b.store.put(map[string]file{"m.mar": mar("b", "m", "2.0")})
		b.after(time.Second, "m/2.0 b*")
		if _, err := b.Rollback(b.t.Context(), "m", "", ""); err != nil {
			t.Fatal(err)
		}
		b.after(time.Hour, "m/1.0 a*")
	})
}

func TestRollbackWaitsForWhatIsLeaving(t *testing.T) {
	in(t, nil, func(b *bench, run func()) {
		b.models.drains = time.Minute
		run()
		b.store.put(map[string]file{"m.mar": mar("a", "m", "1.0")})
		b.after(time.Second, "m/1.0 a*")
		b.models.breakDigest("x", errors.New("no"))
		b.store.put(map[string]file{"m.mar": mar("x", "m", "1.0")}) // nothing leaves
		b.after(time.Second, "m/1.0 a*")
		b.store.put(map[string]file{"m.mar": mar("b", "m", "1.0")})
		b.after(time.Second, "m/1.0 b*")
		ctx, cancel := context.WithTimeout(b.t.Context(), time.Second)
		defer cancel()
		if _, err := b.Rollback(ctx, "m", "", ""); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("somebody who does not wait: %v", err)
		}
		done, err := b.Rollback(b.t.Context(), "m", "", "")
		if err != nil || done.ToDigest != "a" {
			t.Errorf("rolled back %+v, %v", done, err)
		}
		b.after(time.Hour, "m/1.0 a*")
	})
}

func TestRollbackThatFailsChangesNothing(t *testing.T) {
	in(t, nil, func(b *bench, run func()) {
		run()
		b.store.put(map[string]file{"m.mar": mar("a", "m", "1.0")})
		b.after(time.Second, "m/1.0 a*")
		b.store.put(map[string]file{"m.mar": mar("b", "m", "1.0")})
		b.after(time.Second, "m/1.0 b*")
		b.models.breakDigest("a", errors.New("it does not come up any more"))
		if _, err := b.Rollback(b.t.Context(), "m", "", ""); err == nil || !strings.Contains(err.Error(), "any more") {
			t.Errorf("rollback: %v", err)
		}
		b.after(time.Hour, "m/1.0 b*")
		if s := b.opts.Ledger.State(); len(s.Ignored)+len(s.Pinned) > 0 {
			t.Errorf("the ledger has %+v", s)
		}
	})
}

func TestRollbackInFoldersOfVersions(t *testing.T) {
	in(t, nil, func(b *bench, run func()) {
		run()
		b.store.put(map[string]file{"m/1": versioned("a", "m", "1"), "m/2": versioned("b", "m", "2"), "m/3": versioned("c", "m", "3")})
		b.after(time.Second, "m/1 a, m/2 b, m/3 c*")
		done, err := b.Rollback(b.t.Context(), "m", "", "")
		if err != nil || done.To != ref("m", "2") || done.From != ref("m", "3") {
			t.Errorf("rolled back %+v, %v", done, err)
		}
		b.after(time.Hour, "m/1 a, m/2 b*")
		b.wantDecision("m/3", DecisionIgnored, "rolled back to version 2")
		b.store.put(map[string]file{"m/4": versioned("d", "m", "4")})
		b.after(time.Second, "m/1 a, m/2 b, m/4 d*")
		if _, err := b.Rollback(b.t.Context(), "m", "", "1"); err != nil {
			t.Fatal(err)
		}
		b.after(time.Second, "m/1 a*, m/2 b")
		b.store.put(map[string]file{"m/4": versioned("e", "m", "4")})
		b.after(time.Second, "m/1 a*, m/2 b, m/4 e") // 1 was asked for although 2 is there
	})
}

// TestRollbackAfterARestart goes back to the version that was the default one before, although that was before the restart: none lies below the present
// one, so that nothing else would do.
func TestRollbackAfterARestart(t *testing.T) {
	files := map[string]file{"m/1": versioned("a", "m", "1"), "m/2": versioned("b", "m", "2"), "m/3": versioned("c", "m", "3")}
	first := func(b *bench, run func()) {
		run()
		b.store.put(files)
		b.after(time.Second, "m/1 a, m/2 b, m/3 c*")
		if err := b.SetDefault(b.t.Context(), infer.ModelRef{Name: "m", Version: "1"}); err != nil {
			b.t.Fatal(err)
		}
	}
	restart := func(b *bench, run func()) {
		b.store.put(files)
		b.begin()
		run()
		b.after(time.Minute, "m/1 a*, m/2 b, m/3 c")
	}
	remembered(t, nil, first, func(b *bench, run func()) {
		restart(b, run)
		if done, err := b.Rollback(b.t.Context(), "m", "", ""); err != nil || done.To != ref("m", "3") {
			b.t.Errorf("rolled back %+v, %v", done, err)
		}
	})
	remembered(t, nil, first, func(b *bench, run func()) { // what is gone is nothing to go back to
		restart(b, run)
		b.store.remove("m/3")
		b.after(time.Minute, "m/1 a*, m/2 b")
		if earlier := b.opts.Ledger.State().Earlier; len(earlier) != 0 {
			b.t.Errorf("remembered %v", earlier)
		}
	})
}

func TestFoldersInUseAreNotKept(t *testing.T) {
	in(t, nil, func(b *bench, run func()) {
		run()
		b.Deployer.keep = func(*archive.Archive, string) error { return errors.New("it is used in place") }
		b.store.put(map[string]file{"m.mar": mar("a", "m", "1.0")})
		b.after(time.Second, "m/1.0 a*")
		b.store.put(map[string]file{"m.mar": mar("b", "m", "1.0")})
		b.after(time.Second, "m/1.0 b*")
		var f *fault.Error
		if _, err := b.Rollback(b.t.Context(), "m", "", ""); !errors.As(err, &f) || !strings.Contains(f.Hint, "used in place") {
			t.Errorf("rollback: %v", err)
		}
	})
}

func TestOnlySoManyAreKept(t *testing.T) {
	in(t, func(o *Options) { o.Keep = 2 }, func(b *bench, run func()) {
		run()
		for _, digest := range []string{"a", "b", "c", "d"} {
			b.store.put(map[string]file{"m.mar": mar(digest, "m", "1.0")})
			b.after(time.Second, "m/1.0 "+digest+"*")
		}
		var kept []string
		for _, k := range b.opts.Ledger.State().Kept {
			kept = append(kept, k.Digest)
		}
		if diff := cmp.Diff([]string{"b", "c"}, kept); diff != "" {
			t.Error(diff)
		}
		b.store.remove("m.mar")
		b.after(time.Minute, "")
		if kept := b.opts.Ledger.State().Kept; len(kept) > 0 {
			t.Errorf("of a model that is gone there is %+v", kept)
		}
	})
}
