package host

import (
	"context"
	"errors"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/flambeau-serve/flambeau/internal/fault"
	"github.com/flambeau-serve/flambeau/plugins/backend"
)

func TestCallError(t *testing.T) {
	t.Parallel()
	live := t.Context()
	cancelled, cancel := context.WithCancel(t.Context())
	cancel()
	worded, cancelWith := context.WithCancelCause(t.Context())
	cancelWith(fault.New(fault.ClientTimeout, "too late", nil))
	expired, cancelExpired := context.WithTimeout(t.Context(), time.Nanosecond)
	defer cancelExpired()
	<-expired.Done()
	broken := errors.New("connection reset")

	died := &ending{exit: exitState{code: 3}, last: []string{"boo"}}
	byCode := &ending{exit: exitState{code: 137}}
	bySignal := &ending{exit: exitState{code: -1, signal: syscall.SIGKILL}}
	starved := &ending{exit: exitState{code: -1, signal: syscall.SIGKILL}, body: autopsy{killed: true, memory: backend.CrashMemory{Kills: 3}}}
	starved.crash = crashOf(starved, nil)
	crashed := &ending{exit: exitState{code: -1, signal: syscall.SIGSEGV}}
	killed := &ending{exit: exitState{code: -1, signal: syscall.SIGKILL, killed: true}, cause: broken}
	asked := &ending{exit: exitState{}, asked: true}
	for name, tc := range map[string]struct {
		ctx  context.Context //nolint:containedctx // a table
		err  error
		gone *ending
		kind fault.Kind
		text string // in message, cause or detail
	}{
		"died":                            {live, broken, died, fault.BackendDied, "exit status 3; its last lines on standard error:\nboo"},
		"died, by code of SIGKILL":        {live, broken, byCode, fault.BackendDied, "exit status 137"},
		"died, by SIGKILL":                {live, broken, bySignal, fault.BackendDied, "killed by signal 9 (killed)"},
		"died, out of memory":             {live, broken, starved, fault.BackendOutOfMemory, "oom_kill of its control group is 3"},
		"crashed":                         {live, broken, crashed, fault.BackendDied, "signal 11"},
		"killed by us":                    {live, broken, killed, fault.BackendDied, "killed by the server"},
		"killed by us, why":               {live, broken, killed, fault.BackendDied, "connection reset"},
		"died while the client went":      {cancelled, context.Canceled, died, fault.BackendDied, "Worker died."},
		"cancelled":                       {cancelled, context.Canceled, nil, fault.Cancelled, "canceled"},
		"cancelled in words":              {worded, context.Canceled, nil, fault.ClientTimeout, "too late"},
		"expired":                         {expired, context.DeadlineExceeded, nil, fault.ResponseTimeout, "in time"},
		"stopped":                         {live, broken, asked, fault.Draining, "Worker stopped."},
		"stopped while the client waited": {expired, broken, asked, fault.ResponseTimeout, "in time"},
		"a fault":                         {live, fault.New(fault.LoadFailed, "no", nil), nil, fault.LoadFailed, "no"},
		"anything else":                   {live, broken, nil, fault.Internal, "connection reset"},
	} {
		err := callError(tc.ctx, tc.err, tc.gone)
		f, ok := errors.AsType[*fault.Error](err)
		if !ok || f.Kind != tc.kind {
			t.Errorf("%s: %v, want %v", name, err, tc.kind)
			continue
		}
		if all := err.Error() + "\n" + f.Detail; !strings.Contains(all, tc.text) {
			t.Errorf("%s: %q is not in %q", name, tc.text, all)
		}
		if died := tc.gone == byCode || tc.gone == bySignal || tc.gone == starved; died && fault.HTTPStatus(err) != outOfMemoryStatus() {
			t.Errorf("%s: status %d; TorchServe's for a SIGKILL is 507", name, fault.HTTPStatus(err))
		}
		if f.Kind == fault.BackendDied && f.Message != "Worker died." || f.Kind == fault.BackendOutOfMemory && !strings.Contains(f.Message, "out of memory") {
			t.Errorf("%s: message %q", name, f.Message)
		}
	}
	if err := asked.fault(); err != nil {
		t.Errorf("an end that was asked for is a failure: %v", err)
	}
}
