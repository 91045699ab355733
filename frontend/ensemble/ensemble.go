// Package ensemble runs pipelines of models as one model, inside of the server: its steps are requests to the models' own queues.
package ensemble

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/flambeau-serve/flambeau/frontend/oip"
	"github.com/flambeau-serve/flambeau/internal/fault"
	"github.com/flambeau-serve/flambeau/internal/infer"
	"github.com/flambeau-serve/flambeau/internal/pipeline"
	"github.com/flambeau-serve/flambeau/plugins/backend"
)

// Models are the models that steps run on.
type Models interface {
	// Infer asks a model for an inference, as a client of the Open Inference Protocol would: it waits in the model's queue and is batched with others.
	Infer(ctx context.Context, ref infer.ModelRef, call Call) (*oip.Response, error)
	// Submit hands a model a request as it is.
	Submit(ctx context.Context, ref infer.ModelRef, item infer.Item) (infer.Result, error)
	// Member tells about a model; it is an error of the kind ModelNotFound or VersionNotFound when there is none.
	Member(ref infer.ModelRef) (Member, error)
	// Changed gives a channel that is closed when something about any model has changed since.
	Changed() <-chan struct{}
}

// Call is an inference on one model.
type Call struct {
	ID      string
	Header  []infer.Field
	Request *oip.Request
}

// Member is what is known of a model.
type Member struct {
	Ready  bool
	Reason string               // why it is not ready
	Failed bool                 // its last start failed
	Ports  *backend.Description // nil when the model does not say
}

// program is what the command of an ensemble names in the place of a program: no file is called so.
const program = "flambeau:ensemble\x00"

// Command says how to "start" an ensemble.
func Command(d *pipeline.Definition) (backend.ProcessSpec, error) {
	text, err := json.Marshal(d)
	if err != nil {
		return backend.ProcessSpec{}, fmt.Errorf("the ensemble's definition: %w", err)
	}
	return backend.ProcessSpec{Path: program, Args: []string{string(text)}}, nil
}

// Options are what a Launcher needs. Next, Models and Logger are required.
type Options struct {
	Next   backend.Launcher // starts everything else
	Models Models
	// Grace is how long a load waits for a model that is not registered. 0: five seconds.
	Grace  time.Duration
	Logger *slog.Logger
}

const defaultGrace = 5 * time.Second

// Launcher makes instances of ensembles, and has all other instances started.
type Launcher struct {
	opts Options

	mu     sync.Mutex                // guards what follows
	made   int                       // instances so far
	graphs map[*instance]composition // of instances that load or are loaded
	lacked map[infer.ModelRef]string // ensembles whose last load failed for want of a model, and the folder that it was of
}

// composition says which model an instance is, and of which it is made.
type composition struct {
	name    string
	members []string
}

// New makes a Launcher.
func New(opts Options) (*Launcher, error) {
	if opts.Next == nil || opts.Models == nil || opts.Logger == nil {
		return nil, errors.New("ensemble: Next, Models and Logger are required")
	}
	if opts.Grace <= 0 {
		opts.Grace = defaultGrace
	}
	return &Launcher{opts: opts, graphs: map[*instance]composition{}, lacked: map[infer.ModelRef]string{}}, nil
}

// Launch implements backend.Launcher.
func (l *Launcher) Launch(ctx context.Context, spec backend.ProcessSpec) (backend.Instance, error) {
	if spec.Path != program {
		return l.opts.Next.Launch(ctx, spec) //nolint:wrapcheck // it is that launcher's
	}
	if len(spec.Args) != 1 {
		return nil, fault.Newf(fault.StartFailed, "the command of an ensemble has %d arguments", len(spec.Args))
	}
	d := &pipeline.Definition{}
	if err := json.Unmarshal([]byte(spec.Args[0]), d); err != nil {
		return nil, fault.New(fault.StartFailed, "the ensemble's definition cannot be read", err)
	}
	l.mu.Lock()
	l.made++
	id := fmt.Sprintf("ensemble-%d", l.made)
	l.mu.Unlock()
	i := &instance{id: id, launcher: l, given: d, done: make(chan struct{}), tell: func(error) {}}
	i.life, i.end = context.WithCancelCause(context.WithoutCancel(ctx))
	return i, nil
}

// note remembers of which models an instance is made, and refuses a circle of ensembles.
func (l *Launcher) note(i *instance, name string, members []string) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.graphs[i] = composition{name, members}
	if path := l.circle(name, name, nil); path != nil {
		delete(l.graphs, i)
		f := fault.New(fault.LoadFailed, "the ensemble would be made of itself: "+strings.Join(path, " → "), nil)
		f.Hint = "take one of these models out of the steps of the one before it"
		return f
	}
	return nil
}

// circle looks for a way from a model back to the first one; mu is held.
func (l *Launcher) circle(first, at string, path []string) []string {
	path = append(slices.Clone(path), at)
	for _, g := range l.graphs {
		if g.name != at {
			continue
		}
		for _, member := range g.members {
			if member == first {
				return append(path, member)
			}
			if slices.Contains(path, member) {
				continue
			}
			if found := l.circle(first, member, path); found != nil {
				return found
			}
		}
	}
	return nil
}

func (l *Launcher) forget(i *instance) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.graphs, i)
}

// DependentsOf names the models that were needed only for a model: the members of an ensemble, and theirs, that no other ensemble is made of. Triton
// unloads them with the ensemble when it is asked to unload the dependents.
func (l *Launcher) DependentsOf(model string) []string {
	l.mu.Lock()
	defer l.mu.Unlock()
	own := map[string]bool{model: true}
	var found []string
	for at := []string{model}; len(at) > 0; at = at[1:] {
		for _, member := range l.membersOf(at[0]) {
			if own[member] || l.isNeeded(member, own) {
				continue
			}
			own[member] = true
			found = append(found, member)
			at = append(at, member)
		}
	}
	return found
}

// membersOf gives the members of an ensemble; mu is held.
func (l *Launcher) membersOf(model string) []string {
	var all []string
	for _, g := range l.graphs {
		if g.name == model {
			all = append(all, g.members...)
		}
	}
	slices.Sort(all)
	return slices.Compact(all)
}

// isNeeded says whether an ensemble that is none of own has a model as a member; mu is held.
func (l *Launcher) isNeeded(model string, own map[string]bool) bool {
	for _, g := range l.graphs {
		if !own[g.name] && slices.Contains(g.members, model) {
			return true
		}
	}
	return false
}
