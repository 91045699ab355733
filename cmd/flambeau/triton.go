package main

import (
	"github.com/flambeau-serve/flambeau/modelstore/rollout"
	"github.com/flambeau-serve/flambeau/plugins/backend"
	"github.com/flambeau-serve/flambeau/plugins/native"
)

// modelConfigVariable tells a native backend which file to read in place of the model's own configuration file.
const modelConfigVariable = "FLAMBEAU_MODEL_CONFIG"

// onnxCommand says how a worker for an ONNX model is started.
func onnxCommand(programs *native.Command, r *rollout.ProcessRequest) (backend.ProcessSpec, error) {
	spec, err := programs.ONNX(r.Dir, r.Workers)
	if err == nil && r.Config != "" {
		spec.Env = append(spec.Env, modelConfigVariable+"="+r.Config)
	}
	return spec, err //nolint:wrapcheck // rollout says which worker it is about
}
