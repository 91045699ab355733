package grpcapi

import (
	"compress/zlib"
	"errors"
	"fmt"
	"io"
)

// deflate reads messages that clients compress with what gRPC calls deflate, the zlib format: clients of Triton may choose it, and Triton reads it.
// Answers go out as they are.
type deflate struct {
	most int // bytes of an unpacked message; one more is read, so that gRPC refuses what is larger
}

// Type implements grpc.Decompressor.
func (deflate) Type() string { return "deflate" }

// Do implements grpc.Decompressor.
func (d deflate) Do(r io.Reader) (message []byte, err error) {
	z, err := zlib.NewReader(r)
	if err != nil {
		return nil, fmt.Errorf("the message is not in the zlib format: %w", err)
	}
	defer func() { err = errors.Join(err, z.Close()) }()
	if message, err = io.ReadAll(io.LimitReader(z, int64(d.most)+1)); err != nil {
		return nil, fmt.Errorf("the message cannot be unpacked: %w", err)
	}
	return message, nil
}
