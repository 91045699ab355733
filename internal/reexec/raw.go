package reexec

import (
	"context"

	"github.com/flambeau-serve/flambeau/handlersdk/pluginserver"
	backendv1 "github.com/flambeau-serve/flambeau/proto/backend/v1"
	"github.com/flambeau-serve/flambeau/proto/backend/v1/frame"
)

// raw answers with frames that no Handler can be brought to make.
type raw struct{ mode Mode }

var _ pluginserver.Backend = raw{}

func serveRaw(mode Mode) error {
	limit, err := pluginserver.MaxMessageBytes()
	if err != nil {
		return err
	}
	handshake, err := pluginserver.TakeHandshake()
	if err != nil {
		return err
	}
	s, err := pluginserver.New(pluginserver.Options{Backend: raw{mode: mode}, Handshake: handshake, MaxMessageBytes: limit})
	if err != nil {
		return err
	}
	return s.Serve()
}

// Load implements pluginserver.Backend.
func (raw) Load(context.Context, *backendv1.LoadRequest) (*backendv1.LoadResponse, error) {
	return &backendv1.LoadResponse{}, nil
}

// Run implements pluginserver.Backend.
func (r raw) Run(_ context.Context, batch []byte, give pluginserver.Give) error {
	head, err := frame.DecodeHead(batch)
	if err != nil {
		return err
	}
	if r.mode == Miscount {
		return give(true, frame.EncodeResults(frame.KindResults, head.BatchID, nil))
	}
	return give(true, frame.Buffers{[]byte("no frame")})
}

// Unload implements pluginserver.Backend.
func (raw) Unload(context.Context) error { return nil }
