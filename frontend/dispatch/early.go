package dispatch

import (
	"context"
	"time"

	"github.com/flambeau-serve/flambeau/frontend/batch"
	"github.com/flambeau-serve/flambeau/internal/fault"
	"github.com/flambeau-serve/flambeau/internal/infer"
	"github.com/flambeau-serve/flambeau/modelstore/rollout"
)

// Refuse says why Submit would refuse a request now, of which there is only the header yet, so that nobody has to send or to hold the rest of what is not taken. size is how
// many bytes of payload there will be, 0 if nobody knows. What it refuses is counted as a request that Submit has refused. Nil says nothing: the request may
// be refused all the same once it is whole, as others may have taken the place, or because it takes its payload to tell.
func (d *Dispatcher) Refuse(ctx context.Context, ref infer.ModelRef, item infer.Item, size int64) error {
	begun := time.Now()
	v := d.certain(ref, &item)
	if v == nil {
		return nil
	}
	err := d.refusal(ctx, v, &item, size)
	if !fault.Refused(err) || d.missed(ref, v, batch.Times{}, err) {
		return nil
	}
	err = explain(ref, v, err)
	d.answered(v, begun, &item, batch.Times{}, err)
	if d.opts.Observe != nil {
		d.opts.Observe(Observation{Ref: ref, Taken: v.Ref(), ID: item.ID, Begun: begun, Total: time.Since(begun), Err: err})
	}
	return err
}

// certain gives the version that a request is for, nil when there is none, or when chance decides, which might decide otherwise in Submit.
func (d *Dispatcher) certain(ref infer.ModelRef, item *infer.Item) *rollout.Version {
	chance := false
	v, err := d.opts.Models.Route(ref, func(name string) string { return headerOf(item.Header, name) }, func() string {
		chance = true
		return ""
	})
	if err != nil || chance {
		return nil
	}
	return v
}

// refusal says why a version would refuse a request, as far as that can be told without its payload. It looks at what submit looks at, in its order.
func (d *Dispatcher) refusal(ctx context.Context, v *rollout.Version, item *infer.Item, size int64) error {
	leave, err := d.admit(ctx, v)
	if err != nil {
		return err
	}
	defer leave()
	if !v.HasWorkers() {
		return d.without(ctx, v)
	}
	l, err := d.line(v)
	if err != nil {
		return err
	}
	d.mu.Lock()
	w := d.windows[v]
	d.mu.Unlock()
	if limit := int64(v.MaxConcurrency()); w != nil && limit > 0 && w.inside.Load() >= limit {
		return crowded(v, l, limit)
	}
	q, ok := l.queue.(*batch.Queue)
	if !ok {
		return nil // which sequence a request belongs to may be in its payload
	}
	return q.Refuses(d.fairness(v).Key.Of(item), size) //nolint:wrapcheck // the queue's faults are the client's
}
