package httpapi

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strconv"
	"time"

	"github.com/flambeau-serve/flambeau/internal/fault"
	"github.com/flambeau-serve/flambeau/internal/infer"
	"github.com/flambeau-serve/flambeau/modelstore/rollout"
	"github.com/flambeau-serve/flambeau/plugins/backend"
)

// startTimeFormat is how TorchServe writes a worker's start: UTC to the millisecond.
const startTimeFormat = "2006-01-02T15:04:05.000Z"

// modelView is a model version as TorchServe describes it, members in its order.
type modelView struct {
	Name                string          `json:"modelName"`
	Version             string          `json:"modelVersion"`
	URL                 string          `json:"modelUrl"`
	Runtime             string          `json:"runtime"`
	MinWorkers          int             `json:"minWorkers"`
	MaxWorkers          int             `json:"maxWorkers"`
	BatchSize           int             `json:"batchSize"`
	MaxBatchDelay       int64           `json:"maxBatchDelay"`
	ResponseTimeout     int64           `json:"responseTimeout"`
	StartupTimeout      int64           `json:"startupTimeout"`
	MaxRetryTimeout     int64           `json:"maxRetryTimeoutInSec"`
	ClientTimeout       int64           `json:"clientTimeoutInMills"`
	ParallelType        string          `json:"parallelType"`
	ParallelLevel       int             `json:"parallelLevel"`
	DeviceType          string          `json:"deviceType"`
	DeviceIDs           []int           `json:"deviceIds,omitempty"`
	ContinuousBatching  bool            `json:"continuousBatching"`
	UseJobTicket        bool            `json:"useJobTicket"`
	UseVenv             bool            `json:"useVenv"`
	Stateful            bool            `json:"stateful"`
	SequenceMaxIdle     int64           `json:"sequenceMaxIdleMSec"`
	SequenceTimeout     int64           `json:"sequenceTimeoutMSec"`
	MaxNumSequence      int             `json:"maxNumSequence"`
	MaxSequenceJobQueue int             `json:"maxSequenceJobQueueSize"`
	LoadedAtStartup     bool            `json:"loadedAtStartup"`
	Workers             []workerView    `json:"workers"`
	Queue               queueView       `json:"jobQueueStatus"`
	Custom              json.RawMessage `json:"customizedMetadata,omitempty"`
	*versionDetails
}

// versionDetails are what TorchServe does not tell; they are there only when a client asks for details.
type versionDetails struct {
	Default bool   `json:"default"`
	State   string `json:"state"`
	Reason  string `json:"reason"` // why it is not serving, or why a worker was started again last

	Generation  int           `json:"generation"`
	Digest      string        `json:"digest"`
	Source      string        `json:"source"`
	Since       *time.Time    `json:"since"` // null before it serves
	Swap        string        `json:"swap"`
	Labels      []string      `json:"labels"`
	Weight      float64       `json:"weight"`
	Updating    *adminUpdate  `json:"updating"`
	LastFailure *adminFailure `json:"lastFailure"`
	Refused     *adminRefused `json:"refused,omitempty"` // lately
	Steps       []detailStep  `json:"steps"`
	Crashes     int           `json:"crashes"` // of its workers that are remembered: GET /admin/models/M/crashes has them
}

// detailStep is a part of the last load.
type detailStep struct {
	Name   string  `json:"name"`
	TookMS float64 `json:"tookMs"`
}

// detailsOfVersion are what TorchServe does not tell about a version.
func detailsOfVersion(d *rollout.Description) *versionDetails {
	v := &versionDetails{
		Default: d.Default, State: d.State, Reason: d.Reason, Generation: d.Generation, Digest: d.Digest, Source: d.Source, Since: momentOf(d.Since),
		Swap: d.Swap, Labels: append([]string{}, d.Labels...), Weight: d.Weight, Updating: updateOf(d.Updating), LastFailure: failureOf(d.LastFailure),
		Steps: make([]detailStep, 0, len(d.Steps)),
	}
	for _, s := range d.Steps {
		v.Steps = append(v.Steps, detailStep{Name: s.Name, TookMS: milliseconds(s.Took)})
	}
	return v
}

type workerView struct {
	ID        string `json:"id"`
	StartTime string `json:"startTime"`
	Status    string `json:"status"`
	Memory    int64  `json:"memoryUsage"`
	PID       int    `json:"pid"`
	GPU       bool   `json:"gpu"`
	GPUUsage  string `json:"gpuUsage"`
	*workerDetails
}

// workerDetails are what TorchServe does not tell.
type workerDetails struct {
	State    string `json:"state"`
	Reason   string `json:"reason"`
	Restarts int    `json:"restarts"`
}

type queueView struct {
	Remaining int `json:"remainingCapacity"`
	Pending   int `json:"pendingRequests"`
}

// describe serves GET /models/M, /models/M/V and /models/M/all. With details=true, a parameter that TorchServe does not know, there is more.
func (a *API) describe(q *request, ref infer.ModelRef, params []pair) (answer, error) {
	details := boolParam(params, "details", false)
	if len(q.segments) == 4 && ref.Version == "all" {
		all, err := a.opts.Models.DescribeAll(ref.Name)
		if err != nil {
			return answer{}, err //nolint:wrapcheck // the model store's words are the client's
		}
		views := make([]modelView, 0, len(all))
		for _, d := range all {
			views = append(views, a.view(d, details))
		}
		return marshal(views)
	}
	d, err := a.opts.Models.Describe(ref)
	if err != nil {
		return answer{}, err //nolint:wrapcheck // the model store's words are the client's
	}
	if boolParam(params, "customized", false) {
		return a.describeCustom(q, ref, d, details)
	}
	return marshal([]modelView{a.view(d, details)})
}

// describeCustom asks the model's handler for a description of itself and adds it.
func (a *API) describeCustom(q *request, ref infer.ModelRef, d rollout.Description, details bool) (answer, error) {
	header := append(q.handlerHeader(1), infer.Field{Name: "describe", Value: "True"})
	// The version that is described is asked, wherever the model's traffic goes.
	res, err := a.opts.Predictor.Submit(q.http.Context(), d.Ref, infer.Item{ID: q.id, Header: header, Alone: true})
	if err != nil {
		return answer{}, unavailable(err, infer.ModelRef{Name: ref.Name}, "describe", "")
	}
	view := a.view(d, details)
	view.Custom = json.RawMessage("{}")
	var object map[string]json.RawMessage
	if json.Unmarshal(res.Body, &object) == nil && object != nil {
		view.Custom = withoutNulls(res.Body)
	}
	ans, err := marshal([]modelView{view})
	if err != nil {
		return ans, err
	}
	made, err := handlerAnswer(res)
	ans.status, ans.fields = made.status, made.fields
	return ans, err
}

// withoutNulls drops the members of objects that are null, at every depth, as TorchServe does. The rest stays as the handler wrote it: the order of
// members, and numbers digit by digit.
func withoutNulls(text json.RawMessage) json.RawMessage {
	d := json.NewDecoder(bytes.NewReader(text))
	start, err := d.Token()
	bracket, ok := start.(json.Delim)
	if err != nil || !ok {
		return text
	}
	out := []byte{byte(bracket)}
	for d.More() {
		var member []byte
		if bracket == '{' {
			name, err := d.Token()
			if err != nil {
				return text
			}
			if member, err = json.Marshal(name); err != nil {
				return text
			}
			member = append(member, ':')
		}
		var value json.RawMessage
		if err := d.Decode(&value); err != nil {
			return text
		}
		if bracket == '{' && string(value) == "null" {
			continue
		}
		if len(out) > 1 {
			out = append(out, ',')
		}
		out = append(append(out, member...), withoutNulls(value)...)
	}
	return append(out, byte(bracket+2)) // the closing one: in ASCII it follows two places after
}

// view makes a description as TorchServe's clients know it.
func (a *API) view(d rollout.Description, details bool) modelView {
	v := modelView{
		Name: d.Ref.Name, Version: d.Ref.Version, URL: d.URL, Runtime: d.Runtime, MinWorkers: d.MinWorkers, MaxWorkers: d.MaxWorkers,
		BatchSize: d.BatchSize, MaxBatchDelay: d.MaxBatchDelay.Milliseconds(),
		ResponseTimeout: seconds(d.ResponseTimeout), StartupTimeout: seconds(d.StartupTimeout), MaxRetryTimeout: seconds(d.MaxRetryTimeout),
		ClientTimeout: d.ClientTimeout.Milliseconds(), ParallelType: d.ParallelType, ParallelLevel: d.ParallelLevel, DeviceType: d.DeviceType,
		DeviceIDs: d.DeviceIDs, ContinuousBatching: d.ContinuousBatching, UseJobTicket: d.UseJobTicket, UseVenv: d.UseVenv, Stateful: d.Stateful,
		SequenceMaxIdle: d.SequenceMaxIdle.Milliseconds(), SequenceTimeout: d.SequenceTimeout.Milliseconds(),
		MaxNumSequence: d.MaxNumSequence, MaxSequenceJobQueue: d.MaxSequenceJobQueue, LoadedAtStartup: d.LoadedAtStartup,
		Workers: make([]workerView, 0, len(d.Workers)), Queue: queueView{Remaining: d.QueueSize},
	}
	for _, w := range d.Workers {
		status := "UNLOADING" // TorchServe has no other word for a worker that is not ready
		if w.Ready {
			status = "READY"
		}
		v.Workers = append(v.Workers, workerView{
			ID: strconv.Itoa(w.ID), StartTime: w.StartTime.UTC().Format(startTimeFormat), Status: status, Memory: w.Memory, PID: w.PID,
			GPU: w.GPU != backend.NoGPU, GPUUsage: "N/A", workerDetails: detailsOf(w, details),
		})
	}
	if details {
		v.versionDetails = detailsOfVersion(&d)
		if a.opts.Admin != nil && a.opts.Admin.Crashes != nil {
			v.Crashes = len(a.opts.Admin.Crashes.Crashes(d.Ref))
		}
		v.Refused = a.refusedOf(d.Ref)
	}
	if waiting, capacity, err := a.opts.Predictor.Queue(d.Ref); err == nil {
		v.Queue = queueView{Remaining: max(capacity-waiting, 0), Pending: waiting}
	}
	return v
}

func detailsOf(w rollout.Worker, wanted bool) *workerDetails {
	if !wanted {
		return nil
	}
	return &workerDetails{State: w.State, Reason: w.Reason, Restarts: w.Restarts}
}

func seconds(d time.Duration) int64 { return int64(d / time.Second) }

// marshal writes a success as TorchServe does: two blanks a level, nothing escaped that need not be, a newline at the end.
func marshal(v any) (answer, error) {
	text, err := prettyJSON(v)
	if err != nil {
		return answer{}, fault.New(fault.Internal, "Internal error.", err)
	}
	return jsonAnswer(text), nil
}

func prettyJSON(v any) ([]byte, error) {
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	enc.SetIndent("", "  ")
	if err := enc.Encode(v); err != nil {
		return nil, fmt.Errorf("answer: %w", err)
	}
	return b.Bytes(), nil
}

// statusAnswer is a success with a sentence.
func statusAnswer(text string) answer {
	b := append([]byte("{\n  \"status\": "), appendJSONString(nil, text)...)
	return jsonAnswer(append(b, "\n}\n"...))
}

// acceptedAnswer says that the work goes on behind the answer.
func acceptedAnswer() answer {
	ans := statusAnswer("Processing worker updates...")
	ans.status = statusAccepted
	return ans
}
