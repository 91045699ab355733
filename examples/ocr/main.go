// Command ocr is what stands between the three models of a pipeline that reads the text in pictures: started with the argument page it makes the detector's input, with
// crops those of what the detector has found, with lines the reader's input, with text the answer. examples/ocr/README.md puts them together.
package main

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"

	"github.com/flambeau-serve/flambeau/handlersdk"
	"github.com/flambeau-serve/flambeau/handlersdk/tensor"
)

func main() {
	slog.SetDefault(slog.New(handlersdk.NewLogHandler(nil)))
	name := ""
	if len(os.Args) > 1 {
		name = os.Args[1]
	}
	handlersdk.Serve(&handler{name: name})
}

// step makes tensors of tensors. Inputs and Outputs are what it tells about itself.
type step struct {
	inputs, outputs []handlersdk.Port
	run             func(in map[string]tensor.Tensor) ([]tensor.Tensor, error)
}

// handler is one step.
type handler struct {
	name string
	step step
}

// Initialize implements handlersdk.Handler.
func (h *handler) Initialize(_ context.Context, m handlersdk.Model) error {
	switch h.name {
	case "page":
		h.step = pageStep()
	case "crops":
		h.step = cropsStep()
	case "lines":
		h.step = linesStep()
	case "text":
		text, err := os.ReadFile(filepath.Join(m.Dir, "characters.txt"))
		if err != nil {
			return fmt.Errorf("%w; examples/ocr/pack.py writes it", err)
		}
		h.step = textStep(strings.Split(strings.TrimSuffix(string(text), "\n"), "\n"))
	default:
		return fmt.Errorf("there is no step %q; pluginArgs has to be one of page, crops, lines and text", h.name)
	}
	return nil
}

// Features implements handlersdk.Featured: tensors come and go as they are, not as JSON.
func (h *handler) Features() []string { return []string{handlersdk.FeatureOIPBinary} }

// Describe implements handlersdk.Describer. The server compares it with what the other models say before the pipeline serves.
func (h *handler) Describe() handlersdk.Description {
	return handlersdk.Description{Inputs: h.step.inputs, Outputs: h.step.outputs}
}

// Handle implements handlersdk.Handler.
func (h *handler) Handle(ctx context.Context, items []handlersdk.Item) ([]handlersdk.Result, error) {
	results := make([]handlersdk.Result, len(items))
	for i := range items {
		if ctx.Err() != nil {
			results[i].Err = context.Cause(ctx)
			continue
		}
		in, err := read(&items[i], h.step.inputs)
		var out []tensor.Tensor
		if err == nil {
			out, err = h.step.run(in)
		}
		if err != nil {
			results[i].Err = handlersdk.Errorf(badRequest, "%w", err)
			continue
		}
		results[i], results[i].Err = write(out)
	}
	return results, nil
}

const badRequest = 400
