package rollout

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/flambeau-serve/flambeau/internal/fault"
	"github.com/flambeau-serve/flambeau/internal/infer"
	"github.com/flambeau-serve/flambeau/plugins/backend"
)

// worker is one worker slot of a version: a goroutine that starts an instance, watches it, and starts the next one when it dies.
type worker struct {
	id      int
	gpu     int
	patient atomic.Bool // what it has may take as long as it likes when it is told to end
	devices []int       // of a parallel model's worker, gpu the first of them; nil without GPUs
	group   int         // that they are
	created time.Time
	cancel  context.CancelFunc // ends the worker: it drains, stops its instance and returns
	done    chan struct{}      // closed when it has returned
	settled chan struct{}      // closed at the first success or the first failure
	lost    sync.Once          // guards the pool's hope for it

	recalled chan struct{} // closed when somebody waits for the end of a worker that was let go
	once     sync.Once     // guards recalled

	mu       sync.Mutex // guards what follows
	current  *life      // of the instance of now or, between two, of the last one
	inst     backend.Instance
	member   *member
	waiting  bool          // between two instances
	failed   bool          // gave up for good
	leaving  bool          // was told to end
	restarts int           // instances after the first one
	reason   string        // of the last failure
	first    error         // what the first start gave; read once settled is closed
	took     []Step        // parts of the last start
	usual    time.Duration // that the last start took which ended well; 0 before that
	startsAt time.Time     // when the next start is, or the last one was; zero for the first one
	came     bool          // an instance was ready once
	isDown   bool          // the last start failed or the instance died, and no new one is ready
}

// errRetired is the cause by which a worker is told to end.
var errRetired = errors.New("the worker was removed")

// delays are the waits before the starts after the first failure, in seconds; the last one is repeated (TorchServe's sequence).
var delays = [...]int{0, 1, 1, 2, 3, 5, 8, 13, 21, 34, 55, 89, 144, 233, 377}

// provedAfter is how long an instance without an answer must live until its death begins a new series of failures.
const provedAfter = 10 * time.Second

// hopeFor is how many starts of a worker that has never come up have to fail before requests do not wait for the next one.
const hopeFor = 3

// errNoStart is what requests hear for that reason; nil for none.
func errNoStart(why error) error {
	if why == nil {
		return nil
	}
	return fault.New(fault.NoWorker, "the model's worker did not start: "+reasonOf(why), nil)
}

func delay(failures int) time.Duration {
	return time.Duration(delays[min(failures, len(delays))-1]) * time.Second
}

// forsake takes the pool's hope for the worker back: no request waits for it any more.
func (w *worker) forsake(p *pool) { w.lost.Do(func() { p.lose(w.id) }) }

// end tells the worker to end, once no sequence needs it any more.
func (w *worker) end(p *pool) {
	w.mu.Lock()
	w.leaving = true
	w.mu.Unlock()
	p.dismiss(w.id)
	w.cancel()
}

// letGo ends a worker that nobody waits for: what it has may take long. The version's mu is held.
func (g *generation) letGo(w *worker) {
	g.leaving = slices.DeleteFunc(g.leaving, func(w *worker) bool {
		select {
		case <-w.done:
			return true
		default:
			return false
		}
	})
	g.leaving = append(g.leaving, w)
	w.patient.Store(true)
	w.end(g.version.pool)
}

// recall tells a worker that was let go that somebody waits for its end by now.
func (w *worker) recall() { w.once.Do(func() { close(w.recalled) }) }

// rest notes that an instance has ended, and waits until the next one is to be started. It says no when there is to be none.
func (w *worker) rest(ctx context.Context, g *generation, f *failures, proved bool, err error) (again bool) {
	v := g.version
	if proved { // a worker that dies before its first answer is in a loop, however well it loads
		*f = failures{}
	}
	f.number++
	if f.since.IsZero() {
		f.since = time.Now()
	}
	w.fail(err)
	v.changed(ctx, g, Change{Kind: ChangeWorkerFailed, Reason: fmt.Sprintf("worker %d: %s", w.id, reasonOf(err))})
	if v.pool.isToCome(g.number) { // the update has failed with it; who asked for that may try again
		<-ctx.Done()
		return false
	}
	if time.Since(f.since) >= g.settings.maxRetry {
		v.log.Error("worker gave up", "worker", w.id, "failures", f.number, "retry_window", g.settings.maxRetry, "reason", reasonOf(err))
		w.giveUp()
		w.forsake(v.pool)
		<-ctx.Done()
		return false
	}
	pause := delay(f.number)
	if !w.cameUp() { // trying at once would only help one that had worked
		pause = delay(f.number + 1)
	}
	pause += v.manager.deaths.spread(time.Now(), pause)
	w.pausing(pause)
	v.log.Warn("worker is started again", "worker", w.id, "failures", f.number, "after", pause, "reason", reasonOf(err))
	if f.number >= hopeFor && !w.everCameUp() { // most likely it never will
		v.pool.doubt(w.id, errNoStart(err))
		defer v.pool.doubt(w.id, nil)
	}
	select {
	case <-time.After(pause):
	case <-ctx.Done():
		return false
	}
	w.again()
	return true
}

// serve runs one instance from its start to its end. It says whether the instance proved itself, and why it ended.
func (w *worker) serve(ctx context.Context, g *generation, l *life) (proved bool, err error) {
	v := g.version
	w.adopt(l)
	begun := time.Now()
	inst, info, err := w.start(ctx, g, l)
	if err != nil {
		w.move(v, l, Failed, err)
		w.move(v, l, Stopped, err)
		return false, err
	}
	m := v.pool.add(inst, w.id, g.slots(info), g.number, g.terms(info))
	readySince := time.Now()
	w.setReady(inst, m)
	w.move(v, l, Ready, nil)
	w.settle(nil)
	g.ready()
	v.log.Info("worker is ready", "worker", w.id, "generation", g.number, "pid", inst.PID(), "after", time.Since(begun).Round(time.Millisecond))
	v.loaded(w.id, time.Since(begun))
	select {
	case <-ctx.Done():
		w.retire(ctx, g, l, inst, m)
		return true, nil
	case <-m.overdue:
		late := fault.Newf(fault.ResponseTimeout, "no answer within the response timeout of %s", g.settings.responseTimeout)
		err = late
		v.pool.leave(m)
		if killer, can := inst.(backend.Killer); can {
			killer.Kill(err)
		} else {
			w.kill(ctx, inst)
		}
		if crash, is := errors.AsType[*backend.CrashError](inst.Err()); is {
			told := *late // late itself is the cause of the crash
			told.Cause = crash
			err = &told
		}
		w.move(v, l, Failed, err)
	case <-inst.Done():
		v.pool.leave(m)
		if err = inst.Err(); err == nil {
			err = fault.New(fault.BackendDied, "Worker died.", nil)
		}
		w.move(v, l, Failed, err)
	}
	w.move(v, l, Stopped, err)
	return m.answered.Load() > 0 || time.Since(readySince) > provedAfter, err
}

// start launches an instance, loads the model, warms it up, and gives what it tells about itself; on failure nothing is left of it.
func (w *worker) start(ctx context.Context, g *generation, l *life) (_ backend.Instance, info backend.Info, _ error) {
	v := g.version
	spec, err := g.process(w.id, w.devices)
	if err != nil {
		return nil, info, err
	}
	begun := time.Now()
	starting, cancel := context.WithTimeout(ctx, v.limits.Start)
	inst, err := v.launcher.Launch(starting, spec)
	cancel()
	if err != nil {
		return nil, info, err
	}
	w.setInstance(inst)
	w.time(stepStart, begun)
	w.move(v, l, Loading, nil)
	begun = time.Now()
	loading, cancel := context.WithTimeout(ctx, g.settings.startupTimeout)
	defer cancel()
	if waiter, may := inst.(backend.Waiter); may {
		waiter.OnWait(func(why error) { v.pool.doubt(w.id, errNoStart(why)) })
		defer v.pool.doubt(w.id, nil)
	}
	info, err = inst.Load(loading, g.loadSpec(w.loadGPU()))
	if err != nil {
		if loading.Err() != nil && ctx.Err() == nil {
			late := fault.Newf(fault.LoadFailed, "the model was not loaded within the startup timeout of %s", g.settings.startupTimeout)
			late.Hint, late.Cause = "raise startupTimeout (model-config.yaml) or default_startup_timeout if the model needs more time", err
			err = late
		}
		w.kill(ctx, inst)
		return nil, info, err
	}
	w.time(stepLoad, begun)
	if info, err = g.declare(info); err != nil {
		w.kill(ctx, inst)
		return nil, info, err
	}
	w.move(v, l, Warming, nil)
	begun = time.Now()
	if ran, err := g.warm(ctx, inst); err != nil {
		w.kill(ctx, inst)
		return nil, info, err
	} else if ran {
		w.time(stepWarmUp, begun)
	}
	g.told(info)
	return inst, info, nil
}

// retire lets the instance finish what it has, for as long as the version allows, and stops it. A batch of a sequence that has kept it so far, and that it
// has then, gets the time that any batch gets.
func (w *worker) retire(ctx context.Context, g *generation, l *life, inst backend.Instance, m *member) {
	v, patient := g.version, w.patient.Load()
	limit := g.patience(patient)
	w.move(v, l, Draining, errRetired)
	v.pool.retire(m)
	ended := v.finishes(inst, m, limit, w.recalled)
	if !ended && patient {
		limit = g.patience(false)
		ended = v.finishes(inst, m, limit, nil)
	}
	if !ended && v.pool.leave(m) {
		limit = v.drain
		ended = v.finishes(inst, m, limit, nil)
	}
	switch {
	case ended:
	case v.manager.hurried.Err() != nil:
		v.log.Warn("a batch did not end before the server had to, and is cut off", "worker", w.id)
	default:
		v.log.Warn("a batch did not end in time and is cut off", "worker", w.id, "drain", limit)
	}
	v.pool.leave(m)
	w.move(v, l, Stopping, errRetired)
	stopping, cancel := context.WithTimeout(context.WithoutCancel(ctx), v.limits.Stop)
	defer cancel()
	if err := inst.Stop(stopping); err != nil {
		v.log.Warn("worker did not end by itself and was killed", "worker", w.id, "reason", err.Error())
	}
	w.move(v, l, Stopped, nil)
}

// finishes waits until an instance has nothing to do any more, or is gone. It says no when the time is over before that, or recalled is closed.
func (v *Version) finishes(inst backend.Instance, m *member, limit time.Duration, recalled <-chan struct{}) bool {
	over := time.NewTimer(limit)
	defer over.Stop()
	select {
	case <-m.released:
		return true
	case <-m.overdue:
		return true
	case <-inst.Done():
		return true
	case <-v.manager.hurried.Done():
	case <-recalled:
	case <-over.C:
	}
	select {
	case <-m.released: // in the same moment
		return true
	default:
		return false
	}
}

// kill ends an instance at once.
func (w *worker) kill(ctx context.Context, inst backend.Instance) {
	now, cancel := context.WithCancel(context.WithoutCancel(ctx))
	cancel()
	_ = inst.Stop(now) // it always ends the process; how it ended was said by who asked for it
}

// move changes the state of the instance and tells about it.
func (w *worker) move(v *Version, l *life, s State, cause error) {
	from, err := l.to(s, reasonOf(cause))
	if err != nil {
		v.log.Error("illegal change of state", "worker", w.id, "reason", err.Error())
	}
	v.event(Event{
		At: time.Now(), Ref: v.ref, WorkerID: w.id, From: from, To: s, Cause: cause, Generation: l.generation, Restarts: w.restarted(),
	})
}

func (w *worker) adopt(l *life) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.current, w.inst, w.member = l, nil, nil
}

func (w *worker) setInstance(inst backend.Instance) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.inst = inst
}

func (w *worker) setReady(inst backend.Instance, m *member) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.inst, w.member, w.isDown, w.came = inst, m, false, true
	w.usual = 0
	for _, s := range w.took {
		w.usual += s.Took
	}
}

func (w *worker) fail(err error) {
	w.mu.Lock()
	w.waiting, w.isDown, w.reason = true, true, reasonOf(err)
	w.mu.Unlock()
	w.settle(err)
}

func (w *worker) giveUp() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.waiting, w.failed = false, true
}

func (w *worker) again() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.waiting = false
	w.restarts++
}

// restarted is how often an instance was started again.
func (w *worker) restarted() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.restarts
}

// settle notes how the first start went.
func (w *worker) settle(err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	select {
	case <-w.settled:
	default:
		w.first = err
		close(w.settled)
	}
}

// cameUp says whether the last instance was ready.
func (w *worker) cameUp() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.member != nil
}

func (w *worker) everCameUp() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.came
}

// await waits until the worker is ready, and fails when its first start failed or when it is between two starts.
func (w *worker) await(ctx context.Context) error {
	select {
	case <-w.settled:
	case <-w.done:
		return errRetired
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.isDown {
		if w.first != nil {
			return w.first
		}
		return fault.New(fault.StartFailed, w.reason, nil)
	}
	return nil
}

// time notes how long a part of the start took.
func (w *worker) time(step string, begun time.Time) {
	took := time.Since(begun)
	w.mu.Lock()
	defer w.mu.Unlock()
	if step == stepStart {
		w.took = nil
	}
	w.took = append(w.took, Step{step, took})
}

// timings gives how long the parts of the last start took.
func (w *worker) timings() []Step {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.took
}

// state is that of its instance.
func (w *worker) state() State {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.current == nil {
		return Starting
	}
	s, _ := w.current.read()
	return s
}

// healthy says whether the worker is, or may get, ready (TorchServe's rule for /ping).
func (w *worker) healthy() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return !w.failed
}

func (w *worker) describe() Worker {
	w.mu.Lock()
	defer w.mu.Unlock()
	d := Worker{ID: w.id, StartTime: w.created, Restarts: w.restarts, Reason: w.reason, GPU: w.gpu}
	var s State
	if w.current != nil {
		s, _ = w.current.read()
	}
	d.State = s.String()
	switch {
	case w.failed:
		d.State = "failed"
	case w.waiting:
		d.State = "waiting"
	case s == Ready:
		d.Ready = true
	}
	if w.inst != nil && !dead(w.inst) {
		d.PID = w.inst.PID()
		d.Memory = resident(d.PID)
	}
	return d
}

// reasonOf is the line about err for people who run the server.
func reasonOf(err error) string {
	if err == nil {
		return ""
	}
	var f *fault.Error
	switch is := errors.As(err, &f); {
	case is && f.Kind == fault.BackendDied && f.Detail != "":
		return f.Message + " " + f.Detail
	case is && f.Kind == fault.ResponseTimeout:
		return f.Message // its cause, how the process was killed, says the same
	}
	return err.Error()
}

// logger gives the logger of a version.
func logger(base *slog.Logger, ref infer.ModelRef) *slog.Logger {
	return base.With("model", ref.Name, "version", ref.Version)
}
