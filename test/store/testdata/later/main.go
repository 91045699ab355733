// Command later is a plugin as a later SDK may make them: it speaks the versions of the protocol that it was built for, and says what this release knows nothing of.
package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/go-plugin"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/encoding/protowire"

	backendv1 "github.com/flambeau-serve/flambeau/proto/backend/v1"
	"github.com/flambeau-serve/flambeau/proto/backend/v1/frame"
)

// versions are those that it speaks; the linker writes them, and the marks by which they are known without running it.
var (
	versions = "1,2"
	marks    = ""
)

// What this release does not know.
const (
	unknownField = 1000
	unknownKind  = 200
	unknownFlag  = 0x80
)

func main() {
	if os.Getenv(backendv1.CookieKey) != backendv1.CookieValue {
		fmt.Fprintln(os.Stderr, "the server starts this program", marks)
		os.Exit(1)
	}
	spoken := map[int]plugin.PluginSet{}
	for text := range strings.SplitSeq(versions, ",") {
		n, err := strconv.Atoi(text)
		if err != nil {
			panic(err)
		}
		spoken[n] = plugin.PluginSet{backendv1.PluginName: service{}}
	}
	plugin.Serve(&plugin.ServeConfig{
		HandshakeConfig:  plugin.HandshakeConfig{MagicCookieKey: backendv1.CookieKey, MagicCookieValue: backendv1.CookieValue},
		VersionedPlugins: spoken,
		GRPCServer: func(opts []grpc.ServerOption) *grpc.Server {
			return grpc.NewServer(append(opts, grpc.ForceServerCodecV2(frame.Codec{}))...)
		},
		Logger: hclog.NewNullLogger(),
	})
}

type service struct{ plugin.NetRPCUnsupportedPlugin }

// GRPCServer implements plugin.GRPCPlugin.
func (service) GRPCServer(_ *plugin.GRPCBroker, g *grpc.Server) error {
	backendv1.RegisterBackendServer(g, backend{})
	return nil
}

// GRPCClient implements plugin.GRPCPlugin; this side has no client.
func (service) GRPCClient(context.Context, *plugin.GRPCBroker, *grpc.ClientConn) (any, error) {
	return nil, errors.New("it serves only")
}

type backend struct {
	backendv1.UnimplementedBackendServer
}

// Load implements backendv1.BackendServer.
func (backend) Load(context.Context, *backendv1.LoadRequest) (*backendv1.LoadResponse, error) {
	resp := &backendv1.LoadResponse{
		Features:        []string{"of_a_later_release", backendv1.FeatureStreams},
		DescriptionJson: []byte(`{"platform": "later", "accepts": ["text/plain"], "of_a_later_release": {"deep": [1, null]}}`),
	}
	resp.ProtoReflect().SetUnknown(protowire.AppendString(protowire.AppendTag(nil, unknownField, protowire.BytesType), "later"))
	return resp, nil
}

// Unload implements backendv1.BackendServer.
func (backend) Unload(context.Context, *backendv1.UnloadRequest) (*backendv1.UnloadResponse, error) {
	return &backendv1.UnloadResponse{}, nil
}

// Execute implements backendv1.BackendServer: it answers in capitals, with frames around each answer that this release has no meaning for.
func (backend) Execute(stream grpc.BidiStreamingServer[backendv1.Frame, backendv1.Frame]) error {
	for {
		var b []byte
		if err := stream.RecvMsg(&b); errors.Is(err, io.EOF) {
			return nil
		} else if err != nil {
			return err
		}
		head, err := frame.DecodeHead(b)
		if err != nil {
			return err
		}
		if head.Kind != frame.KindBatch {
			continue
		}
		_, items, err := frame.DecodeBatch(b)
		if err != nil {
			return err
		}
		results := make([]frame.Result, len(items))
		for i := range items {
			body := items[i].Parts[0].Data
			results[i].Body = bytes.ToUpper(body)
			if string(body) == "fail" {
				results[i] = frame.Result{Failure: &frame.Failure{Reason: "of_a_later_release", Message: "for a reason of a later release"}}
			}
		}
		foreign := frame.EncodeCancel(head.BatchID).Join()
		foreign[0] = unknownKind
		answer := frame.EncodeResults(frame.KindResults, head.BatchID, results).Join()
		answer[1] = unknownFlag
		for _, message := range [][]byte{foreign, answer, foreign} {
			if err := stream.SendMsg(frame.Buffers{message}); err != nil {
				return err
			}
		}
	}
}
