package main

import (
	"context"
	"fmt"

	"github.com/flambeau-serve/flambeau/frontend/dispatch"
	"github.com/flambeau-serve/flambeau/frontend/oipserver"
	"github.com/flambeau-serve/flambeau/internal/logfiles"
	"github.com/flambeau-serve/flambeau/modelstore/deploy"
)

// newProtocol makes what answers the Open Inference Protocol; nil when only what TorchServe has of it is served.
func (s *server) newProtocol(logs *logfiles.Logs) (*oipserver.Server, error) {
	if s.cfg.Protocol == "torchserve" || s.cfg.Protocol == settingAuto && s.torchserve {
		return nil, nil //nolint:nilnil // nil is what the API takes for "off"
	}
	opts := oipserver.Options{
		Predictor: countedPredictor{s.core.dispatcher, &s.drain.open}, Models: s.models, Statistics: s.core.dispatcher, ModelAPI: s.cfg.ModelAPI, Version: version,
		Sequence: dispatch.SequenceHeaders(s.cfg.SequenceHeaders), Logger: logs.Server(), Logging: protocolLog{logs}, TraceFile: s.cfg.TraceFile,
		TraceBytes:     s.cfg.TraceBytes,
		MaxSharedBytes: s.cfg.MaxRequestBytes, Archives: s.core.archives, Deployer: s.core.models, Temp: s.cfg.Env.TempDir,
		Dependents: s.core.ensembles,
	}
	if s.cfg.SharedMemory {
		opts.SharedMemory = "/dev/shm"
	}
	if s.core.deployer != nil {
		opts.Store = protocolStore{s.core.deployer}
	}
	p, err := oipserver.New(opts)
	if err != nil {
		return nil, fmt.Errorf("the Open Inference Protocol: %w", err)
	}
	s.core.observed = p.Observed
	return p, nil
}

// protocolLog is the server's log as clients of the protocol change it.
type protocolLog struct{ logs *logfiles.Logs }

// Settings implements oipserver.Logging.
func (l protocolLog) Settings() oipserver.LogLevels {
	s := l.logs.Shown()
	return oipserver.LogLevels{Info: s.Info, Warning: s.Warn, Error: s.Error, Verbose: s.Debug, ISO8601: s.ISO8601}
}

// Change implements oipserver.Logging.
func (l protocolLog) Change(to oipserver.LogLevels) {
	l.logs.Show(logfiles.Shown{Debug: to.Verbose, Info: to.Info, Warn: to.Warning, Error: to.Error, ISO8601: to.ISO8601})
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
