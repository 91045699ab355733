package onnx

import (
	"encoding/binary"
	"testing"

	"github.com/flambeau-serve/flambeau/handlersdk"
	"github.com/flambeau-serve/flambeau/handlersdk/tensor"
	"github.com/flambeau-serve/flambeau/plugins/onnx/session"
)

// BenchmarkMagika: what a request costs beside the run of the model, which "model" measures alone.
func BenchmarkMagika(b *testing.B) {
	h := magika(b)
	data := make([]byte, 0, 4*2048)
	for _, v := range features(python) {
		data = binary.LittleEndian.AppendUint32(data, uint32(v))
	}
	row := tensor.Tensor{Name: "bytes", DType: tensor.Int32, Shape: []int64{1, 2048}, Data: data}
	b.Run("model", func(b *testing.B) {
		for b.Loop() {
			if _, err := h.session.Run(b.Context(), []session.Input{{Name: "bytes", Value: session.Of(&row)}}, nil); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("request", func(b *testing.B) {
		for b.Loop() {
			results, err := h.Handle(b.Context(), []handlersdk.Item{item("application/octet-stream", data)})
			if err != nil || results[0].Err != nil {
				b.Fatal(err, results)
			}
		}
	})
}
