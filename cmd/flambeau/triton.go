package main

import (
	"github.com/flambeau-serve/flambeau/modelstore/pbtxt"
	"github.com/flambeau-serve/flambeau/modelstore/rollout"
	"github.com/flambeau-serve/flambeau/modelstore/watch"
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

// repositoryOf reads what a config.pbtxt says about the folder of its model. One that cannot be used says nothing; who opens the model tells why.
func repositoryOf(text []byte, model string) watch.Repository {
	c, err := pbtxt.Parse(text, model)
	if err != nil {
		return watch.Repository{}
	}
	return watch.Repository{Select: c.Policy.Select, Bare: c.Ensemble != nil}
}
