package oip

import (
	"cmp"
	"encoding/binary"
	"fmt"
	"math"
	"slices"
	"strconv"

	"github.com/flambeau-serve/flambeau/handlersdk/tensor"
)

// Classify gives the k largest elements of each row, or of the whole tensor when it is not batched, as Triton writes them: "score:index", and
// ":label" where there is one.
func Classify(t *tensor.Tensor, k int64, labels []string, batched bool) (tensor.Tensor, error) {
	scores, err := scoresOf(t)
	if err != nil {
		return tensor.Tensor{}, err
	}
	rows := int64(1)
	if batched && len(t.Shape) > 0 {
		rows = t.Shape[0]
	}
	width := int64(0)
	if rows > 0 {
		width = int64(len(scores)) / rows
	}
	k = min(k, width)
	out := tensor.Tensor{Name: t.Name, DType: tensor.Bytes, Shape: []int64{k}}
	if batched {
		out.Shape = []int64{rows, k}
	}
	if k == 0 {
		return out, nil
	}
	order := make([]int, width)
	for row := range rows {
		part := scores[row*width : (row+1)*width]
		for i := range order {
			order[i] = i
		}
		slices.SortStableFunc(order, func(a, b int) int { return part[b].compare(part[a]) })
		for _, i := range order[:k] {
			text := part[i].text() + ":" + strconv.Itoa(i)
			if i < len(labels) && labels[i] != "" {
				text += ":" + labels[i]
			}
			out.Data = tensor.AppendElement(out.Data, []byte(text))
		}
	}
	return out, nil
}

// score is one element of an output: all that a datatype can hold is told apart.
type score struct {
	real     float64 // of datatypes with fractions; 0 of others
	whole    uint64  // the amount of others
	negative bool    // of others: below 0
	isReal   bool
}

func (s score) compare(o score) int {
	switch {
	case s.isReal:
		return cmp.Compare(s.real, o.real) // what is not a number comes last
	case s.negative != o.negative:
		if s.negative {
			return -1
		}
		return 1
	case s.negative:
		return cmp.Compare(o.whole, s.whole)
	}
	return cmp.Compare(s.whole, o.whole)
}

// text writes a score as C does.
func (s score) text() string {
	switch {
	case s.isReal:
		return fmt.Sprintf("%f", s.real)
	case s.negative:
		return "-" + strconv.FormatUint(s.whole, 10)
	}
	return strconv.FormatUint(s.whole, 10)
}

// scoresOf reads the elements of an output.
func scoresOf(t *tensor.Tensor) ([]score, error) {
	size := t.DType.Size()
	if size <= 0 {
		return nil, bad("classification of output '%s': it is %s and has no numbers", t.Name, t.DType)
	}
	scores := make([]score, 0, len(t.Data)/size)
	switch t.DType { //nolint:exhaustive // the others are whole numbers
	case tensor.FP64:
		for at := 0; at+size <= len(t.Data); at += size {
			scores = append(scores, score{real: math.Float64frombits(binary.LittleEndian.Uint64(t.Data[at:])), isReal: true})
		}
		return scores, nil
	case tensor.FP16, tensor.BF16, tensor.FP32:
		values, err := t.Floats()
		if err != nil {
			return nil, bad("classification of output '%s': %v", t.Name, err)
		}
		for _, v := range values {
			scores = append(scores, score{real: float64(v), isReal: true})
		}
		return scores, nil
	}
	signed := slices.Contains([]tensor.DType{tensor.Int8, tensor.Int16, tensor.Int32, tensor.Int64}, t.DType)
	for at := 0; at+size <= len(t.Data); at += size {
		scores = append(scores, wholeScore(t.Data[at:at+size], signed))
	}
	return scores, nil
}

// wholeScore reads a whole number, little-endian.
func wholeScore(data []byte, signed bool) score {
	s := score{}
	for i, b := range data {
		s.whole |= uint64(b) << (8 * i) //nolint:mnd // bits of a byte
	}
	bits := 8 * len(data) //nolint:mnd // the same
	if s.negative = signed && s.whole>>(bits-1) == 1; s.negative {
		s.whole = -s.whole & (1<<(bits-1)<<1 - 1)
	}
	return s
}
