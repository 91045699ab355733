package rollout

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/flambeau-serve/flambeau/internal/infer"
	"github.com/flambeau-serve/flambeau/modelstore/archive"
	"github.com/flambeau-serve/flambeau/plugins/backendtest"
)

func TestPrecedenceOfSettings(t *testing.T) {
	yaml := named("a", "1.0")
	yaml.Settings = archive.Settings{
		HasConfig: true, MinWorkers: new(1), MaxWorkers: new(2), BatchSize: new(2), MaxBatchDelay: new(20 * time.Millisecond),
		ResponseTimeout: new(9 * time.Second), StartupTimeout: new(120 * time.Second), JobQueueSize: new(7),
	}
	preset := Preset{MinWorkers: 3, MaxWorkers: 4, BatchSize: 5, MaxBatchDelay: 50 * time.Millisecond, ResponseTimeout: 50 * time.Second, StartupTimeout: 51 * time.Second}
	type got struct {
		min, max, batch, queue   int
		delay, response, startup time.Duration
	}
	for _, tc := range []struct {
		what   string
		a      *archive.Archive
		preset Preset
		spec   Spec
		want   got
	}{
		{"defaults", named("a", "1.0"), Preset{}, Spec{}, got{6, 6, 1, 100, 100 * time.Millisecond, 120 * time.Second, 120 * time.Second}},
		{
			"parameters", named("a", "1.0"),
			Preset{},
			Spec{BatchSize: new(0), MaxBatchDelay: new(time.Duration(0)), InitialWorkers: new(2), ResponseTimeout: new(time.Second)},
			got{2, 2, 0, 100, 0, time.Second, 120 * time.Second},
		},
		{
			"yaml beats parameters, but for the batch", yaml, preset,
			Spec{BatchSize: new(6), InitialWorkers: new(3), ResponseTimeout: new(time.Second)},
			got{1, 2, 6, 7, 20 * time.Millisecond, 9 * time.Second, 120 * time.Second},
		},
		{
			"preset at start-up", named("a", "1.0"), preset,
			Spec{AtStartup: true},
			got{3, 4, 5, 100, 50 * time.Millisecond, 50 * time.Second, 51 * time.Second},
		},
		{
			"preset at registration: no workers of it", named("a", "1.0"), preset,
			Spec{ResponseTimeout: new(time.Second)},
			got{6, 6, 5, 100, 50 * time.Millisecond, 50 * time.Second, 51 * time.Second},
		},
	} {
		t.Run(tc.what, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				h := newHouse(t, &backendtest.Launcher{}, archives{"a.mar": tc.a}, func(o *Options) {
					o.DefaultWorkers = 6
					o.Presets = map[infer.ModelRef]Preset{{Name: "a", Version: "1.0"}: tc.preset}
				})
				tc.spec.URL = "a.mar"
				register(t, h, tc.spec)
				d := h.describe(t, "a")
				have := got{d.MinWorkers, d.MaxWorkers, d.BatchSize, d.QueueSize, d.MaxBatchDelay, d.ResponseTimeout, d.StartupTimeout}
				if have != tc.want {
					t.Errorf("%+v\nwant %+v", have, tc.want)
				}
				h.end(t)
			})
		})
	}
}

func TestDevices(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		chosen := named("chosen", "1.0")
		chosen.Settings.DeviceIDs = []int{2, 0}
		wrong := named("wrong", "1.0")
		wrong.Settings.DeviceIDs = []int{0, 9}
		cpu := named("cpu", "1.0")
		cpu.Settings.DeviceType = "cpu"
		h := newHouse(t, &backendtest.Launcher{}, archives{
			"any.mar": named("any", "1.0"), "chosen.mar": chosen, "wrong.mar": wrong, "cpu.mar": cpu,
		}, func(o *Options) { o.GPUs = 3 })
		gpus := func(url string) (ids []int) {
			register(t, h, Spec{URL: url, InitialWorkers: new(3), Synchronous: true})
			for _, w := range h.describe(t, url[:len(url)-4]).Workers {
				ids = append(ids, w.GPU)
			}
			return ids
		}
		for url, want := range map[string][]int{"chosen.mar": {2, 0, 2}, "cpu.mar": {-1, -1, -1}} {
			if diff := cmp.Diff(want, gpus(url)); diff != "" {
				t.Errorf("%s: %s", url, diff)
			}
		}
		// The server's own round begins with the second device and goes on from model to model.
		if diff := cmp.Diff([]int{1, 2, 0}, gpus("any.mar")); diff != "" {
			t.Error(diff)
		}
		if diff := cmp.Diff([]int{1, 2, 0}, gpus("wrong.mar")); diff != "" {
			t.Error(diff)
		}
		h.end(t)
	})
}
