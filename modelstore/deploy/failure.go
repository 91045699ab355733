package deploy

import (
	"cmp"
	"errors"
	"fmt"
	"strings"
	"syscall"
	"time"

	"github.com/flambeau-serve/flambeau/internal/fault"
	"github.com/flambeau-serve/flambeau/internal/infer"
	"github.com/flambeau-serve/flambeau/modelstore/rollout"
)

// failure is a series of tries of one archive.
type failure struct {
	of       string // which archive: its digest, or its fingerprint when it could not be read
	digest   string // "" when it could not be read
	reason   string
	attempts int
	first    time.Time
	last     time.Time
	next     time.Time // of the next try; zero: there is none
}

// The pauses between two tries, which double, and how long an archive is tried for whose reason is no passing one.
const (
	firstPause   = time.Second
	longestPause = 300 * time.Second
	tryFor       = 5 * time.Minute
)

// failed notes one more failure of an archive.
func (u *unit) failed(digest string, err error, now time.Time) {
	f := u.failure
	if of := cmp.Or(digest, u.looked); f == nil || f.of != of {
		f = &failure{of: of, digest: digest, first: now}
		u.failure = f
	}
	f.reason, f.last = reasonOf(err), now
	f.attempts++
	pause := longestPause
	if n := f.attempts - 1; n < 9 { // 2^9 s are more than the longest pause
		pause = min(firstPause<<n, longestPause)
	}
	switch {
	case final(err):
		f.next = time.Time{}
		u.decide(DecisionRefused, f.reason)
	case temporary(err) || now.Add(pause).Sub(f.first) <= tryFor:
		f.next = now.Add(pause)
		u.decide(DecisionFailed, f.reason)
	default:
		f.next = time.Time{}
		u.decide(DecisionRefused, fmt.Sprintf("%s (tried %d times; it is tried again when it changes, or by flambeau reload)", f.reason, f.attempts))
	}
}

// due says whether a try is due.
func (f *failure) due(now time.Time) bool { return !f.next.IsZero() && !now.Before(f.next) }

// LastFailure gives how the last try ended to replace what serves as a version by what lies in the store; nil when it went well.
func (d *Deployer) LastFailure(ref infer.ModelRef) *rollout.Failure {
	d.mu.Lock()
	defer d.mu.Unlock()
	u := d.claims[ref]
	if u == nil || u.owns != ref || u.failure == nil {
		return nil
	}
	f := u.failure
	return &rollout.Failure{At: f.last, Digest: f.digest, Reason: f.reason, Attempts: f.attempts}
}

// errStrict is an archive that the check refuses.
var errStrict = errors.New("the check found what will fail on this machine")

// final says that the same archive will never do: it is not even tried again.
func final(err error) bool {
	return errors.Is(err, errStrict) || faultIn(err, fault.InvalidModel)
}

// temporary says that the reason may pass by itself, however long it takes.
func temporary(err error) bool {
	for _, errno := range []syscall.Errno{
		syscall.ENOSPC, syscall.EDQUOT, syscall.EMFILE, syscall.ENFILE, syscall.ENOMEM, syscall.EAGAIN, syscall.EIO, syscall.ESTALE, syscall.EROFS,
	} {
		if errors.Is(err, errno) {
			return true
		}
	}
	return faultIn(err, fault.MemoryGuard, fault.BackendOutOfMemory, fault.NoDevices, fault.DownloadFailed, fault.DependencyFailed)
}

// faultIn looks for kinds in the whole chain of causes: a failure to start workers has its reason below it.
func faultIn(err error, kinds ...fault.Kind) bool {
	for err != nil {
		if f, ok := errors.AsType[*fault.Error](err); ok {
			if fault.Is(f, kinds...) {
				return true
			}
			err = f.Cause
			continue
		}
		return false
	}
	return false
}

// reasonOf is the line about err for people who run the server: what a worker that died said last belongs to it, which is no client's business.
func reasonOf(err error) string {
	var text strings.Builder
	text.WriteString(err.Error())
	for below := err; below != nil; {
		f, ok := errors.AsType[*fault.Error](below)
		if !ok {
			break
		}
		if f.Kind == fault.BackendDied && f.Detail != "" {
			text.WriteString(" " + f.Detail)
		}
		if f.Cause == nil && f.Hint != "" {
			text.WriteString(" (" + f.Hint + ")")
		}
		below = f.Cause
	}
	return text.String()
}
