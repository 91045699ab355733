package main

import (
	"context"
	"errors"
	"strings"
	"testing"

	"go.uber.org/goleak"

	backendv1 "github.com/flambeau-serve/flambeau/proto/backend/v1"
	"github.com/flambeau-serve/flambeau/proto/backend/v1/frame"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func ignore(bool, frame.Buffers) error { return nil }

func TestBatchIsTakenAndAnswered(t *testing.T) {
	t.Parallel()
	l := newLibrary()
	batch := frame.EncodeBatch(9, []frame.Item{{ID: "1"}}).Join()
	var given []string
	result := make(chan error, 1)
	go func() {
		result <- l.Run(t.Context(), batch, func(last bool, f frame.Buffers) error {
			head, _, err := frame.DecodeResults(f.Join())
			if last != (head.Kind == frame.KindResults) {
				t.Errorf("last %t with kind %d", last, head.Kind)
			}
			given = append(given, map[bool]string{false: "piece", true: "results"}[last])
			return err
		})
	}()
	j := l.take()
	if j.kind != kindBatch || &j.data[0] != &batch[0] {
		t.Errorf("job of kind %d, its data copied", j.kind)
	}
	one := []frame.Result{{}}
	for _, tc := range []struct {
		frame frame.Buffers
		last  bool
		text  string // of the error
	}{
		{frame.EncodeResults(frame.KindPiece, 9, one), false, ""},
		{frame.EncodeResults(frame.KindPiece, 8, one), false, "batch 8"},
		{frame.EncodeResults(frame.KindPiece, 9, nil), false, "0 results for 1 items"},
		{frame.EncodeResults(frame.KindResults, 9, one), false, "last is false"},
		{frame.Buffers{[]byte("x")}, false, "malformed"},
		{frame.EncodeResults(frame.KindResults, 9, one), true, ""},
		{frame.EncodeResults(frame.KindResults, 9, one), true, "last answer was given before"},
	} {
		err := l.give(j.id, tc.frame.Join(), tc.last)
		if tc.text == "" && err != nil || tc.text != "" && (err == nil || !strings.Contains(err.Error(), tc.text)) {
			t.Errorf("%q: %v", tc.text, err)
		}
	}
	if err := <-result; err != nil || strings.Join(given, " ") != "piece results" {
		t.Errorf("%v, given %v", err, given)
	}
}

func TestBatchThatNobodyTookIsWithdrawn(t *testing.T) {
	t.Parallel()
	l := newLibrary()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := l.Run(ctx, frame.EncodeBatch(1, nil).Join(), ignore); !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
	l.stop()
	if j := l.take(); j != nil {
		t.Errorf("took %+v", j)
	}
}

// Its memory stays where it is until the last answer, whatever became of those who wait.
func TestCancelledBatchIsStillAnswered(t *testing.T) {
	t.Parallel()
	l := newLibrary()
	ctx, cancel := context.WithCancel(t.Context())
	result := make(chan error, 1)
	go func() { result <- l.Run(ctx, frame.EncodeBatch(1, nil).Join(), ignore) }()
	j := l.take()
	cancel()
	if err := <-result; !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
	if err := l.give(j.id, frame.EncodeResults(frame.KindResults, 1, nil).Join(), true); err != nil {
		t.Error(err)
	}
}

func TestLoadAndUnloadJobs(t *testing.T) {
	t.Parallel()
	gpu := int32(0)
	for name, tc := range map[string]struct {
		req    *backendv1.LoadRequest
		job    string // in the job's JSON
		answer string
		text   string // of the failure or the error
	}{
		"cpu":     {&backendv1.LoadRequest{ModelName: "m"}, `"gpu":null`, `{"features":["a"]}`, ""},
		"gpu":     {&backendv1.LoadRequest{Gpu: &gpu}, `"gpu":0`, `{"features":["a"]}`, ""},
		"failure": {&backendv1.LoadRequest{}, `"model_name":""`, `{"failure":{"message":"no","detail":"d","out_of_memory":true}}`, "no"},
		"garbage": {&backendv1.LoadRequest{}, `"handler":""`, `[`, "no JSON object"},
	} {
		l := newLibrary()
		type loaded struct {
			resp *backendv1.LoadResponse
			err  error
		}
		result := make(chan loaded, 1)
		go func() {
			resp, err := l.Load(t.Context(), tc.req)
			result <- loaded{resp, err}
		}()
		j := l.take()
		if j.kind != kindLoad || !strings.Contains(string(j.data), tc.job) {
			t.Errorf("%s: job %d %s", name, j.kind, j.data)
		}
		giveErr := l.give(j.id, []byte(tc.answer), true)
		r := <-result
		switch {
		case r.err != nil || giveErr != nil:
			if tc.text == "" || r.err == nil || !strings.Contains(r.err.Error(), tc.text) || !strings.Contains(giveErr.Error(), tc.text) {
				t.Errorf("%s: %v, %v", name, r.err, giveErr)
			}
		case tc.text != "":
			if f := r.resp.GetFailure(); f.GetMessage() != tc.text || f.GetDetail() != "d" || !f.GetOutOfMemory() {
				t.Errorf("%s: %v", name, f)
			}
		default:
			if r.resp.GetFeatures()[0] != "a" || r.resp.GetFailure() != nil {
				t.Errorf("%s: %v", name, r.resp)
			}
		}
	}
	l := newLibrary()
	result := make(chan error, 1)
	go func() { result <- l.Unload(t.Context()) }()
	j := l.take()
	if j.kind != kindUnload || len(j.data) != 0 {
		t.Errorf("job %d with %d bytes", j.kind, len(j.data))
	}
	if err := l.give(j.id, nil, true); err != nil {
		t.Error(err)
	}
	if err := <-result; err != nil {
		t.Error(err)
	}
}
