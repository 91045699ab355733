// Package ledger keeps what happened to the models, and what the server is to remember about them, across restarts.
//
// Its folder holds events.jsonl with everything that happened, history.jsonl with only what changed what serves (so that a worker that dies over and
// over does not push a model's history out), and state.json. The two logs grow at their end and are rotated by count and size into events.1.jsonl and
// history.1.jsonl; a torn line in them costs that line. They are written by one goroutine: Add never waits for a disk. Each batch of lines is synced
// before the next one is written, so the end of the process or the machine loses what was added in the last moments at most, and nothing that a
// reader was told. The state is another matter: Change returns when it is on the disk.
package ledger
