package store

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/flambeau-serve/flambeau/test/e2e"
)

// TestVoices asks the models of silero-vad, which keep a state from frame to frame, over REST, gRPC, a stream and /predictions, alone and several at once: as ONNX
// files, and as the TorchScript file of the same model in an archive. The answers are those of onnxruntime in Python.
func TestVoices(t *testing.T) {
	box := e2e.NewBox(t)
	found, err := filepath.Glob(filepath.Join(filepath.Dir(box.Bin), "lib/python3*/site-packages/silero_vad/data"))
	if err != nil || len(found) != 1 {
		e2e.Lacks(t, "there is no silero-vad in the environment")
	}
	python := clients(t)
	for name, file := range map[string]string{"vad": "silero_vad.onnx", "vad16": "silero_vad_16k_op15.onnx", "voices": "silero_vad_16k_sequence.onnx"} {
		box.Put(t, name+"/model.onnx", content(t, filepath.Join(found[0], file)))
	}
	script := filepath.Join(t.TempDir(), "vad.pt") // the base handler takes TorchScript by this ending
	if err := os.WriteFile(script, content(t, filepath.Join(found[0], "silero_vad.jit")), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"vad-script", "vad-script-oip"} {
		config := filepath.Join(t.TempDir(), "model-config.yaml")
		if err := os.WriteFile(config, []byte("minWorkers: 1\nmaxWorkers: 1\nbatchSize: 4\nmaxBatchDelay: 200\n"), 0o600); err != nil {
			t.Fatal(err)
		}
		box.Run(t, "torch-model-archiver", "--model-name", name, "--version", "1.0", "--handler", repository(t, "test/store/testdata/vad_handler.py"),
			"--serialized-file", script, "--config-file", config, "--export-path", box.Store)
	}
	s, rest, grpc := startProtocol(t, box)
	for _, name := range []string{"vad", "vad16", "voices", "vad-script", "vad-script-oip"} {
		ready(t, s, name)
	}
	out, err := oip(t, python, repository(t, "test/oip/voice.py"), rest, grpc, box.Store)
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	const least = 80
	if n := strings.Count(out, "OK   "); n < least {
		t.Errorf("%d comparisons, want %d at least:\n%s", n, least, out)
	}
	t.Log(out)
}
