package reexec

import (
	"context"
	"strconv"

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
func (r raw) Load(context.Context, *backendv1.LoadRequest) (*backendv1.LoadResponse, error) {
	resp := &backendv1.LoadResponse{}
	if r.mode == Later {
		resp.Features = []string{"telepathy"}
		resp.DescriptionJson = []byte(`{"platform":"p","inputs":[{"name":"x","datatype":"COMPLEX128","shape":[-1],"colour":"blue"}],"mood":"good"}`)
		resp.ProtoReflect().SetUnknown([]byte("\xc2\x3e\x05later")) // field 1000
	}
	return resp, nil
}

// laterKind is a kind of frame that there is not yet.
const laterKind = 200

// count answers each item with the number of items. A later version sends a frame of its own before, and flags that nobody knows.
func (r raw) count(batch []byte, give pluginserver.Give) error {
	head, items, err := frame.DecodeBatch(batch)
	if err != nil {
		return err
	}
	results := make([]frame.Result, len(items))
	for i := range results {
		results[i].Body = strconv.AppendInt(nil, int64(len(items)), 10)
	}
	answer := frame.EncodeResults(frame.KindResults, head.BatchID, results).Join()
	if r.mode == Later {
		unknown := frame.EncodeCancel(head.BatchID).Join()
		unknown[0] = laterKind
		if err := give(false, frame.Buffers{unknown}); err != nil {
			return err
		}
		answer[1] = 0x80
	}
	return give(true, frame.Buffers{answer})
}

// Run implements pluginserver.Backend.
func (r raw) Run(_ context.Context, batch []byte, give pluginserver.Give) error {
	if r.mode == Older || r.mode == Later {
		return r.count(batch, give)
	}
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
