package crashes

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/flambeau-serve/flambeau/internal/infer"
	"github.com/flambeau-serve/flambeau/plugins/backend"
)

func record(model, version string, at int) Record {
	r := Record{Model: model, Version: version, Worker: 9000, Restarts: at}
	r.At, r.PID, r.Reason = time.Unix(int64(at), 0).UTC(), at, backend.CrashSignal
	return r
}

func pids(records []Record) string {
	var all []string
	for _, r := range records {
		all = append(all, fmt.Sprint(r.Model, r.Version, ":", r.PID))
	}
	return strings.Join(all, " ")
}

func TestBook(t *testing.T) {
	t.Parallel()
	var b Book
	if got := b.List(infer.ModelRef{}); got == nil || len(got) != 0 {
		t.Errorf("%v; want an empty list, which JSON has as []", got)
	}
	for at := range 13 {
		b.Add(record("m", "1", at))
	}
	b.Add(record("m", "2", 5))
	b.Add(record("n", "1", 7))
	if got := b.List(infer.ModelRef{Name: "m", Version: "1"}); len(got) != Kept || got[0].PID != 12 || got[Kept-1].PID != 3 {
		t.Errorf("%s", pids(got))
	}
	if got := pids(b.List(infer.ModelRef{Name: "m"})[6:9]); got != "m1:6 m1:5 m2:5" {
		t.Errorf("of all versions: %s", got)
	}
	if got := len(b.List(infer.ModelRef{})); got != Kept+2 {
		t.Errorf("of all models: %d", got)
	}
	b.Forget(infer.ModelRef{Name: "m", Version: "1"})
	if got := pids(b.List(infer.ModelRef{})); got != "n1:7 m2:5" {
		t.Errorf("%s", got)
	}
	var other Book
	other.Restore(b.List(infer.ModelRef{}))
	if diff := cmp.Diff(b.List(infer.ModelRef{}), other.List(infer.ModelRef{})); diff != "" {
		t.Error(diff)
	}
}

func TestBounds(t *testing.T) {
	t.Parallel()
	var b Book
	r := record("m", "1", 1)
	r.Requests = make([]backend.CrashRequest, 250)
	r.Lines = []backend.CrashLine{{Text: strings.Repeat("é", mostText)}, {Text: "short"}}
	b.Add(r)
	got := b.List(infer.ModelRef{})[0]
	if len(got.Requests) != mostRequests || got.LeftOut != 150 || len(got.Lines[0].Text) > mostText+len("…") || got.Lines[1].Text != "short" {
		t.Errorf("%d requests, %d left out, %d bytes", len(got.Requests), got.LeftOut, len(got.Lines[0].Text))
	}
	if len(r.Lines[0].Text) != 2*mostText || len(r.Requests) != 250 {
		t.Error("the caller's crash was changed")
	}
	for i := range mostModels + 5 {
		b.Add(record(fmt.Sprint("x", i), "1", 10+i))
	}
	all := b.List(infer.ModelRef{})
	if len(all) != mostModels || all[len(all)-1].PID != 15 {
		t.Errorf("%d models, the oldest is %s", len(all), pids(all[len(all)-1:]))
	}
}

// What is kept goes through JSON and back.
func TestJSON(t *testing.T) {
	t.Parallel()
	r := record("m", "1", 3)
	r.How, r.Signal, r.ExitCode, r.Ran, r.Served = "killed by signal 11 (segmentation fault)", "SIGSEGV", -1, 1.5, 7
	r.Memory = backend.CrashMemory{Peak: 1, Limit: 2, LimitOf: "its control group /x", Used: 3, Spared: true, Kills: 4}
	r.Requests = []backend.CrashRequest{{ID: "a", Batch: 1, Ran: 0.25, Rows: 2, Parts: []backend.CrashPart{{Name: "body", ContentType: "text/plain", Bytes: 5}}}}
	r.Lines = []backend.CrashLine{{At: r.At, Stream: "stderr", Text: "Fatal Python error: Segmentation fault"}}
	text, err := json.Marshal(r)
	if err != nil {
		t.Fatal(err)
	}
	var back Record
	if err := json.Unmarshal(text, &back); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(r, back); diff != "" {
		t.Errorf("%s\n%s", text, diff)
	}
	for _, key := range []string{`"model":"m"`, `"restarts":3`, `"reason":"crashed"`, `"signal":"SIGSEGV"`, `"ran_seconds":1.5`, `"lines":[`} {
		if !strings.Contains(string(text), key) {
			t.Errorf("%s is not in %s", key, text)
		}
	}
}
