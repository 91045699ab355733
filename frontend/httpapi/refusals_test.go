package httpapi

import (
	"encoding/json"
	"net/http"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/flambeau-serve/flambeau/frontend/dispatch"
	"github.com/flambeau-serve/flambeau/internal/fault"
	"github.com/flambeau-serve/flambeau/internal/infer"
)

func fullQueue() *fault.Error {
	return &fault.Error{
		Kind: fault.Overloaded, Message: "full", Hint: "send\nless", Setting: "jobQueueSize", RetryAfter: 2300 * time.Millisecond,
		Numbers: []fault.Number{fault.Count("waiting", 4), fault.Count("limit", 4), fault.Millis("mean_service_ms", 200500*time.Microsecond)},
	}
}

// TestRefusalsInHeaders pins what TorchServe's object has no room for.
func TestRefusalsInHeaders(t *testing.T) {
	p := problemOf(fullQueue())
	h := http.Header{}
	setRefusal(h, p)
	want := http.Header{
		"X-Flambeau-Reason": {"queue_full"}, "X-Flambeau-Hint": {"send less"}, "X-Flambeau-Numbers": {"waiting=4, limit=4, mean_service_ms=200.5"},
		"X-Flambeau-Setting": {"jobQueueSize"}, "Retry-After": {"3"},
	}
	if diff := cmp.Diff(want, h); diff != "" {
		t.Error(diff)
	}
	var body map[string]any
	if err := json.Unmarshal(errorJSON(p), &body); err != nil || len(body) != 3 {
		t.Errorf("TorchServe's object has three members: %v %v", body, err)
	}
	h = http.Header{}
	setRefusal(h, problemOf(fault.New(fault.QueueTimeout, "m", nil)))
	if h.Get("Retry-After") != "" || h.Get("X-Flambeau-Reason") != "queue_timeout" {
		t.Errorf("%v", h)
	}
}

// TestRefusalsInTheProtocolsBody has the same in the object of the Open Inference Protocol.
func TestRefusalsInTheProtocolsBody(t *testing.T) {
	var body struct {
		Error, Type, Message, Reason, Setting, Hint string
		Code                                        int
		Numbers                                     map[string]float64
		RequestID                                   string `json:"request_id"`
	}
	text := protocolErrorJSON(problemOf(fullQueue()), "id-1")
	if err := json.Unmarshal(text, &body); err != nil {
		t.Fatalf("%v: %s", err, text)
	}
	if body.Error != "full" || body.Message != "full" || body.Code != 503 || body.Reason != "queue_full" || body.Setting != "jobQueueSize" || body.Hint != "send\nless" ||
		body.RequestID != "id-1" || body.Numbers["mean_service_ms"] != 200.5 || body.Numbers["waiting"] != 4 {
		t.Errorf("%+v", body)
	}
	var plain map[string]any
	if err := json.Unmarshal(protocolErrorJSON(problemOf(fault.New(fault.BadRequest, "m", nil)), "id-1"), &plain); err != nil || len(plain) != 4 {
		t.Errorf("an error that is no refusal: %v %v", plain, err)
	}
}

type remembering dispatch.Refusals

func (r remembering) Refusals(infer.ModelRef) dispatch.Refusals { return dispatch.Refusals(r) }

func TestWhatWasRefusedIsShown(t *testing.T) {
	at := time.Unix(1_700_000_000, 0)
	for name, tc := range map[string]struct {
		admin *Admin
		want  *adminRefused
	}{
		"nobody asks":     {},
		"nobody knows":    {admin: &Admin{}},
		"nothing":         {admin: &Admin{Refused: remembering{}}},
		"some, of a full": {admin: &Admin{Refused: remembering{Reason: "queue_full", At: at, Count: 3}}, want: &adminRefused{Reason: "queue_full", At: at, Count: 3}},
	} {
		a := &API{opts: Options{Admin: tc.admin}}
		if diff := cmp.Diff(tc.want, a.refusedOf(infer.ModelRef{Name: "m"})); diff != "" {
			t.Errorf("%s: %s", name, diff)
		}
	}
}
