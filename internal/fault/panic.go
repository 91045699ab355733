package fault

import (
	"errors"
	"fmt"
	"log/slog"
	"runtime/debug"
)

// Panicked makes the error of a panic in what was being done ("a batch was run"), with the stack in Detail. It is to be called by the deferred function that
// has recovered, while the stack is still there.
func Panicked(what any, doing string) *Error {
	e := New(Internal, "Internal error.", nil)
	e.Hint = "the server has a bug, which its log describes: report it"
	e.Detail = fmt.Sprintf("panic while %s: %v\n\n%s", doing, what, debug.Stack())
	return e
}

// DetailOf gives the Detail of the first Error in err's chain, "" if there is none.
func DetailOf(err error) string {
	if f, ok := errors.AsType[*Error](err); ok {
		return f.Detail
	}
	return ""
}

// IsBug says whether an error comes from a panic, whose stack it has.
func IsBug(err error) bool {
	f, ok := errors.AsType[*Error](err)
	return ok && f.Kind == Internal && f.Detail != ""
}

// Contain calls f, and makes an error of a panic in it: a goroutine whose work is contained does not end the server. Whoever calls it tells of the error,
// and puts right what f has left half done; f is to hold its locks by deferred functions.
func Contain(doing string, f func()) (err error) {
	defer func() {
		if what := recover(); what != nil {
			err = Panicked(what, doing)
		}
	}()
	f()
	return nil
}

// ContainAndTell is Contain, and tells of the error: tell, or the log where tell is nil; nobody where both are.
func ContainAndTell(doing string, f func(), tell func(error), log *slog.Logger) error {
	err := Contain(doing, f)
	switch {
	case err == nil:
	case tell != nil:
		tell(err)
	case log != nil:
		log.Error("a panic was contained", slog.String("error", err.Error()), slog.String("detail", DetailOf(err)))
	}
	return err
}
