package grpcapi

import (
	"bytes"
	"compress/zlib"
	"io"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"

	pb "github.com/flambeau-serve/flambeau/proto/openinference/v2"
)

// squeezer is a client's compressor: gRPC's deflate, or with plain nothing that is compressed.
type squeezer struct{ plain bool }

func (squeezer) Type() string { return "deflate" }

func (s squeezer) Do(w io.Writer, p []byte) error {
	if s.plain {
		_, err := w.Write(p)
		return err
	}
	z := zlib.NewWriter(w)
	if _, err := z.Write(p); err != nil {
		return err
	}
	return z.Close()
}

func TestDeflate(t *testing.T) {
	_, _, s := start(t)
	client := func(c squeezer) pb.GRPCInferenceServiceClient {
		conn, err := grpc.NewClient(s.Addr(), grpc.WithTransportCredentials(insecure.NewCredentials()), grpc.WithCompressor(c)) //nolint:staticcheck // the other way is a global register
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = conn.Close() })
		return pb.NewGRPCInferenceServiceClient(conn)
	}
	good := client(squeezer{})
	if r, err := good.ModelInfer(t.Context(), addRequest()); err != nil || !bytes.Equal(r.GetRawOutputContents()[0], raw(2, 3)) {
		t.Errorf("%v %v", r, err)
	}
	stream, err := good.ModelStreamInfer(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if err := stream.Send(addRequest()); err != nil {
		t.Fatal(err)
	}
	if r, err := stream.Recv(); err != nil || r.GetErrorMessage() != "" {
		t.Errorf("a stream: %v %v", r, err)
	}
	if err := stream.CloseSend(); err != nil {
		t.Error(err)
	}
	bomb := addRequest()
	bomb.RawInputContents[0] = make([]byte, 10_000_000)
	if _, err := good.ModelInfer(t.Context(), bomb); status.Code(err) != codes.ResourceExhausted {
		t.Errorf("a message that unpacks to too much: %v", err)
	}
	if _, err := client(squeezer{plain: true}).ModelInfer(t.Context(), addRequest()); status.Code(err) != codes.Internal {
		t.Errorf("a message that is not compressed, and says so: %v", err)
	}
}
