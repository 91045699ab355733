package archive

import (
	"encoding/binary"
	"encoding/json"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strconv"

	"github.com/google/uuid"

	"github.com/flambeau-serve/flambeau/internal/infer"
	"github.com/flambeau-serve/flambeau/modelstore/pbtxt"
)

// tritonSamples makes the warm-up requests of a config.pbtxt: bodies of the Open Inference Protocol with raw tensors.
func (a *Archive) tritonSamples() ([]Sample, error) {
	var all []Sample
	left := pbtxt.MaxWarmUpBytes
	for i := range a.Triton.WarmUp {
		w := &a.Triton.WarmUp[i]
		item, err := a.tritonSample(w, &left)
		if err != nil {
			return nil, fmt.Errorf("the warm-up request %q of %s cannot be made: %w", w.Name, pbtxt.File, err)
		}
		for range w.Count {
			all = append(all, Sample{File: w.Name, Item: item})
		}
	}
	return all, nil
}

// tritonSample makes one of them. Its tensors are taken from left, the bytes that all of them may still take.
func (a *Archive) tritonSample(w *pbtxt.WarmUp, left *int) (infer.Item, error) {
	type parameters struct {
		Size int `json:"binary_data_size"`
	}
	type input struct {
		Name       string     `json:"name"`
		Shape      []int64    `json:"shape"`
		DataType   string     `json:"datatype"`
		Parameters parameters `json:"parameters"`
	}
	request := struct {
		Inputs     []input         `json:"inputs"`
		Parameters map[string]bool `json:"parameters"`
	}{Parameters: map[string]bool{"binary_data_output": true}}
	parts := [][]byte{nil} // the text, and the tensors
	for i := range w.Inputs {
		in := &w.Inputs[i]
		data, err := a.warmUpData(in)
		if err != nil {
			return infer.Item{}, fmt.Errorf("input %s: %w", in.Name, err)
		}
		request.Inputs = append(request.Inputs, input{in.Name, in.Shape, in.DataType, parameters{len(data)}})
		if *left -= len(data); *left < 0 { // only files can: the others' sizes are in the configuration, which was refused otherwise
			return infer.Item{}, fmt.Errorf("input %s: with it the warm-up requests take %d bytes together, and at most %d are allowed; remove some, or make them smaller",
				in.Name, pbtxt.MaxWarmUpBytes-*left, pbtxt.MaxWarmUpBytes)
		}
		parts = append(parts, data)
	}
	text, err := json.Marshal(request)
	if err != nil {
		return infer.Item{}, err
	}
	parts[0] = text
	body := slices.Concat(parts...)
	return infer.Item{
		ID: uuid.NewString(), Rows: 1,
		Header: []infer.Field{
			{Name: "content-type", Value: "application/octet-stream"},
			{Name: "content-length", Value: strconv.Itoa(len(body))},
			{Name: "inference-header-content-length", Value: strconv.Itoa(len(text))},
		},
		Parts: []infer.Part{{Name: "body", ContentType: "application/octet-stream", Data: body}},
	}, nil
}

// warmUpData makes the raw data of a tensor.
func (a *Archive) warmUpData(in *pbtxt.WarmUpInput) ([]byte, error) {
	elements := 1
	for _, d := range in.Shape {
		elements *= int(d)
	}
	size := pbtxt.ElementSize(in.DataType)
	switch {
	case in.File != "":
		return a.warmUpFile(in, elements*size)
	case size == 0 && !in.Random:
		return make([]byte, 4*elements), nil // empty texts
	case size == 0:
		var data []byte
		for i := range elements {
			text := strconv.Itoa(i)
			data = append(binary.LittleEndian.AppendUint32(data, uint32(len(text))), text...)
		}
		return data, nil
	}
	data := make([]byte, 0, elements*size)
	if !in.Random {
		return data[:elements*size], nil
	}
	random := rand.New(rand.NewPCG(1, 2)) //nolint:gosec // the same at each load
	for range elements {
		data = appendRandom(data, in.DataType, random)
	}
	return data, nil
}

// appendRandom adds a number between 0 and 1, or of an integer type one below 128, which all of them have.
func appendRandom(data []byte, datatype string, random *rand.Rand) []byte {
	const small = 128
	le := binary.LittleEndian
	switch datatype {
	case "BOOL":
		return append(data, byte(random.IntN(2))) //nolint:mnd // false or true
	case "FP16":
		return le.AppendUint16(data, uint16(random.IntN(0x3c00))) // the numbers below 1 have the smaller patterns
	case "BF16":
		return le.AppendUint16(data, uint16(math.Float32bits(random.Float32())>>16))
	case "FP32":
		return le.AppendUint32(data, math.Float32bits(random.Float32()))
	case "FP64":
		return le.AppendUint64(data, math.Float64bits(random.Float64()))
	}
	data = append(data, byte(random.IntN(small)))
	return append(data, make([]byte, pbtxt.ElementSize(datatype)-1)...)
}

// warmUpFile reads the raw data of a tensor from the model's folder warmup.
func (a *Archive) warmUpFile(in *pbtxt.WarmUpInput, want int) (data []byte, err error) {
	root, err := os.OpenRoot(filepath.Join(a.warmUps, warmUpFolder))
	if err != nil {
		return nil, err
	}
	data, err = readSample(root, in.File)
	if closing := root.Close(); err == nil {
		err = closing
	}
	if err == nil && want > 0 && len(data) != want {
		err = fmt.Errorf("the file %s has %d bytes, and %s %v takes %d", in.File, len(data), in.DataType, in.Shape, want)
	}
	return data, err
}
