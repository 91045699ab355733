package main

import "testing"

func TestTune(t *testing.T) {
	t.Parallel()
	a := newAdminAPI(t)
	requireOutput(t, cli(a.env(), "tune", "m"), `m 1.0, p99 of 80 ms (moves)
batch size  38 of at most 64
delay       2.5 ms of at most 100 ms
`)
	requireOutput(t, cli(a.env(), "tune", "m", "--print"), "batchSize: 38\nmaxBatchDelay: 3\n")
	requireOutput(t, cli(a.env(), "tune", "m", "--freeze", "--version", "1.0"), `m 1.0, p99 of 80 ms (frozen)
batch size  38 of at most 64
delay       2.5 ms of at most 100 ms
`)
	if request, _ := a.last(); request != "PUT /admin/models/m/tuning?frozen=true&version=1.0" {
		t.Error(request)
	}
	requireOutput(t, cli(a.env(), "tune", "seq"), `seq 1.0, p99 of 80 ms (frozen)
batch size  10 of at most 64
delay       2.5 ms of at most 100 ms

These are the smallest of its workers, which are tuned one by one:
WORKER  BATCH SIZE  DELAY
9000    10          100 ms
9001    64          2.5 ms
`)
	requireOutput(t, cli(a.env(), "tune", "seq", "--print"), "batchSize: 10\nmaxBatchDelay: 3\n")
	cli(a.env(), "tune", "m", "--release")
	if request, _ := a.last(); request != "PUT /admin/models/m/tuning?frozen=false" {
		t.Error(request)
	}
	if got := cli(a.env(), "tune", "m", "--freeze", "--release"); got.status != exitUsage {
		t.Errorf("%+v", got)
	}
	if got := cli(a.env(), "tune", "x"); got.status != exitFailed || got.stderr != "flambeau tune: error: Model not found: x\n" {
		t.Errorf("%+v", got)
	}
}
