package rollout

import (
	"context"
	"slices"
	"testing"
	"testing/synctest"

	"github.com/google/go-cmp/cmp"

	"github.com/flambeau-serve/flambeau/internal/infer"
	"github.com/flambeau-serve/flambeau/modelstore/archive"
	"github.com/flambeau-serve/flambeau/plugins/backend"
	"github.com/flambeau-serve/flambeau/plugins/backendtest"
)

// What a worker says about its model is in the description, and the program of a plugin reaches the one who starts it.
func TestPluginIsDescribed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		want := &backend.Description{Platform: "p", Inputs: []backend.Port{{Name: "x", DataType: "FP32", Shape: []int64{-1}}}}
		l := &backendtest.Launcher{LaunchFunc: func(context.Context, int, backend.ProcessSpec) (*backendtest.Instance, error) {
			i := backendtest.NewInstance("plugin")
			i.LoadFunc = func(context.Context, backend.LoadSpec) (backend.Info, error) {
				return backend.Info{Features: map[string]bool{"f": true}, Description: want}, nil
			}
			return i, nil
		}}
		a := named("a", "1.0")
		a.Manifest.Runtime, a.Program, a.Settings.PluginArgs = archive.RuntimePlugin, "/own/a", []string{"-v"}
		var asked ProcessRequest
		h := newHouse(t, l, archives{"a.mar": a}, func(o *Options) {
			o.Process = func(r ProcessRequest) (backend.ProcessSpec, error) {
				asked = r
				return backend.ProcessSpec{}, nil
			}
		})
		register(t, h, Spec{URL: "a.mar", Synchronous: true, InitialWorkers: new(1)})
		d, err := h.Describe(infer.ModelRef{Name: "a"})
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(want, d.Ports); diff != "" || !d.Features["f"] || d.Runtime != archive.RuntimePlugin {
			t.Errorf("%s, features %v, runtime %s", diff, d.Features, d.Runtime)
		}
		if asked.Program != "/own/a" || !slices.Equal(asked.Args, []string{"-v"}) || asked.Runtime != archive.RuntimePlugin {
			t.Errorf("%+v", asked)
		}
		h.end(t)
	})
}
