package ledger

import (
	"errors"
	"time"

	"github.com/flambeau-serve/flambeau/internal/fault"
)

// Pauses between tries to write to a disk that takes nothing.
const (
	firstPause = time.Second
	mostPause  = 30 * time.Second
)

// write is the writer's goroutine: it alone writes the logs, from Open to Close.
func (l *Ledger) write() {
	defer close(l.done)
	pause := time.Duration(0) // above 0: the last try failed
	for {
		if !l.waitForWork(pause) {
			if err := l.contained("the ledger was closed", l.end); err != nil {
				l.result = err
			}
			return
		}
		var err error
		if bug := l.contained("events were written", func() { err = l.flush() }); bug != nil {
			err = bug
		}
		switch {
		case err != nil && pause == 0:
			l.log.Error("events and state cannot be written; the server goes on, and tries again", "folder", l.dir, "reason", err.Error())
			pause = firstPause
		case err != nil:
			pause = min(2*pause, mostPause)
		case pause > 0:
			l.log.Info("events and state are written again", "folder", l.dir, "lost_events", l.eventLog.lost)
			l.eventLog.lost, l.historyLog.lost = 0, 0
			pause = 0
		}
	}
}

// contained calls f, and tells of a panic in it, which it gives.
func (l *Ledger) contained(doing string, f func()) error {
	return fault.ContainAndTell(doing, f, l.bug, l.log)
}

// waitForWork returns when there is something to write, after a failure when the pause is over. It gives false when the ledger is closed.
func (l *Ledger) waitForWork(pause time.Duration) bool {
	if pause == 0 {
		select {
		case <-l.wake:
			return true
		case <-l.quit:
			return false
		}
	}
	timer := time.NewTimer(pause)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-l.quit:
		return false
	}
}

// flush writes what is pending.
func (l *Ledger) flush() error {
	l.mu.Lock()
	records, lost, readers, last := l.pending, l.lost, l.readers, l.lastID
	l.pending, l.lost, l.readers = nil, 0, nil
	l.mu.Unlock()
	err := errPanicked // until it is known better: a bug may end this
	defer func() {
		l.mu.Lock()
		if l.failing = err != nil; !l.failing {
			l.written = last
		}
		l.mu.Unlock()
		for _, r := range readers {
			close(r)
		}
	}()
	l.eventLog.lost += lost
	l.eventLog.add(records)
	var history []Record
	for i := range records {
		if changesServing(&records[i]) {
			history = append(history, records[i])
		}
	}
	l.historyLog.add(history)
	err = errors.Join(l.eventLog.flush(), l.historyLog.flush())
	return errors.Join(err, l.saveAgain())
}

// errPanicked stands for the failure of what a bug has ended.
var errPanicked = errors.New("the server has a bug")

// saveAgain writes a state that could not be written when it was changed.
func (l *Ledger) saveAgain() error {
	l.changing.Lock()
	defer l.changing.Unlock()
	if !l.unsaved {
		return nil
	}
	text, err := encodeState(l.state.Load())
	if err != nil {
		return err
	}
	return l.save(text)
}

// end writes for the last time, and gives the folder up.
func (l *Ledger) end() {
	var err error
	if bug := l.contained("events were written for the last time", func() { err = l.flush() }); bug != nil {
		err = bug // and the folder is given up all the same
	}
	err = errors.Join(err, l.eventLog.close(), l.historyLog.close())
	l.changing.Lock()
	l.ended = true
	l.changing.Unlock()
	if l.dir != "" {
		if err == nil {
			err = l.lock.Truncate(0) // closed in order
		}
		err = errors.Join(err, l.lock.Close())
	}
	l.result = err
}
