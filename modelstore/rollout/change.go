package rollout

import (
	"context"
	"time"

	"github.com/flambeau-serve/flambeau/internal/infer"
)

// Change is something that happened to a model version as a whole, or that was refused. Changes of single instances are Events.
type Change struct {
	At         time.Time
	Ref        infer.ModelRef
	Kind       ChangeKind
	Generation int    // which load of the version it is about, counted from 1; 0 for none
	Digest     string // of the archive, "" when not known
	Source     string // where the archive is: a path in the store, or a URL
	Actor      Actor
	Reason     string        // why it failed or was refused, or what exactly was changed; "" when Kind says it all
	Took       time.Duration // from the begin of a load to its end; 0 for what takes no time
	Steps      []Step        // of a load
	Workers    int           // how many it is to have now, and before it, where the load has changed that; 0 and 0 for other changes
	Before     int
}

// ChangeKind is the kind of a Change; the word is part of the interface.
type ChangeKind string

// The kinds of changes.
const (
	ChangeRegistered    ChangeKind = "registered"     // a version that was not there before; its workers start
	ChangeUpdating      ChangeKind = "updating"       // a new generation is started beside, or in place of, the one that serves
	ChangeSwapped       ChangeKind = "swapped"        // the new generation serves
	ChangeSwapFailed    ChangeKind = "swap_failed"    // it did not come up; the old one goes on
	ChangeSuperseded    ChangeKind = "superseded"     // a newer change came before it was ready
	ChangeRefused       ChangeKind = "refused"        // it was not even started: check, memory guard, a broken archive
	ChangeDrained       ChangeKind = "drained"        // the old generation has ended
	ChangeUnregistered  ChangeKind = "unregistered"   // the version is gone
	ChangeScaled        ChangeKind = "scaled"         // its numbers of workers were set
	ChangeDefault       ChangeKind = "default"        // it became the default version
	ChangeTraffic       ChangeKind = "traffic"        // labels or weights of its model were set
	ChangeRolledBack    ChangeKind = "rolled_back"    // an earlier archive was asked for
	ChangeTuned         ChangeKind = "tuned"          // its batch size or delay was moved toward its latency goal, or cannot be
	ChangeRecycled      ChangeKind = "recycled"       // a worker was replaced that had done its part
	ChangeRecycleFailed ChangeKind = "recycle_failed" // the one that was to replace it did not come up, or would be replaced at once
	ChangeWorkerFailed  ChangeKind = "worker_failed"  // a worker of it died or did not come up
)

// Actor says who asked for a change, and why.
type Actor struct {
	Who string // "start", "store", "api", "cli", "snapshot", "rollback", "autoscale", "recycle", or a user's name with one of them before it: "api (10.0.0.7)"
	Why string // "the file resnet.mar changed", "" when nobody said
}

type actorKey struct{}

// WithActor notes on a context who asks for what is done with it.
func WithActor(ctx context.Context, a Actor) context.Context {
	return context.WithValue(ctx, actorKey{}, a)
}

// ActorOf gives who was noted by WithActor.
func ActorOf(ctx context.Context) Actor {
	a, _ := ctx.Value(actorKey{}).(Actor)
	return a
}

// Step is a part of a load.
type Step struct {
	Name string // "open", "dependencies", "check", "start", "load", "warm_up"
	Took time.Duration
}

// Update is a generation that is being started to replace the one that serves.
type Update struct {
	Generation int
	Digest     string
	Since      time.Time
	State      string // of its slowest worker
}

// Failure is how the last try to replace a version ended.
type Failure struct {
	At       time.Time
	Digest   string
	Reason   string
	Attempts int // how often this archive was tried
}
