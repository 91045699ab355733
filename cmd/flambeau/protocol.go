package main

import (
	"context"
	"fmt"

	"github.com/flambeau-serve/flambeau/frontend/dispatch"
	"github.com/flambeau-serve/flambeau/frontend/oipserver"
	"github.com/flambeau-serve/flambeau/modelstore/deploy"
)

// newProtocol makes what answers the Open Inference Protocol; nil when only what TorchServe has of it is served.
func (s *server) newProtocol() (*oipserver.Server, error) {
	if s.cfg.Protocol == "torchserve" || s.cfg.Protocol == settingAuto && s.torchserve {
		return nil, nil //nolint:nilnil // nil is what the API takes for "off"
	}
	opts := oipserver.Options{
		Predictor: s.core.dispatcher, Models: s.models, Statistics: s.core.dispatcher, ModelAPI: s.cfg.ModelAPI, Version: version,
		Sequence: dispatch.SequenceHeaders(s.cfg.SequenceHeaders),
	}
	if s.core.deployer != nil {
		opts.Store = protocolStore{s.core.deployer}
	}
	p, err := oipserver.New(opts)
	if err != nil {
		return nil, fmt.Errorf("the Open Inference Protocol: %w", err)
	}
	return p, nil
}

// protocolStore is the watched store as the protocol's repository.
type protocolStore struct{ deployer *deploy.Deployer }

// Reload implements oipserver.Store.
func (s protocolStore) Reload(ctx context.Context, model string) error {
	return s.deployer.Reload(ctx, model) //nolint:wrapcheck // the model store's words are the client's
}

// Archives implements oipserver.Store.
func (s protocolStore) Archives() []oipserver.Archive {
	entries := s.deployer.Entries()
	all := make([]oipserver.Archive, 0, len(entries))
	for i := range entries {
		if e := &entries[i]; e.Serving == "" {
			all = append(all, oipserver.Archive{Model: e.Model, Version: e.Version, Why: e.Reason})
		}
	}
	return all
}
