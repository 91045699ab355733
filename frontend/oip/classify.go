package oip

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"

	"github.com/flambeau-serve/flambeau/handlersdk/tensor"
)

// Classify gives the k largest elements of each row, or of the whole tensor when it is not batched, as Triton writes them: "score:index", and
// ":label" where there is one.
func Classify(t *tensor.Tensor, k int64, labels []string, batched bool) (tensor.Tensor, error) {
	scores, err := t.Floats()
	if err != nil {
		return tensor.Tensor{}, bad("classification of output '%s': %v", t.Name, err)
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
		slices.SortStableFunc(order, func(a, b int) int { return cmp.Compare(part[b], part[a]) })
		for _, i := range order[:k] {
			text := score(t.DType, part[i]) + ":" + strconv.Itoa(i)
			if i < len(labels) && labels[i] != "" {
				text += ":" + labels[i]
			}
			out.Data = tensor.AppendElement(out.Data, []byte(text))
		}
	}
	return out, nil
}

// score writes a score as C does.
func score(dtype tensor.DType, value float32) string {
	switch dtype { //nolint:exhaustive // the others are whole numbers
	case tensor.FP16, tensor.BF16, tensor.FP32, tensor.FP64:
		return fmt.Sprintf("%f", value)
	}
	return strconv.FormatInt(int64(value), 10)
}
