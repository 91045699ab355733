package archive

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/flambeau-serve/flambeau/modelstore/pbtxt"
)

// TestTritonWarmUpFilesAreBounded: the files of warm-up requests, whose sizes the configuration does not tell, count for what they take together.
func TestTritonWarmUpFilesAreBounded(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	if err := os.Mkdir(filepath.Join(dir, warmUpFolder), 0o700); err != nil {
		t.Fatal(err)
	}
	f, err := os.Create(filepath.Join(dir, warmUpFolder, "texts"))
	if err != nil {
		t.Fatal(err)
	}
	if err := f.Truncate(maxSampleBytes); err != nil {
		t.Fatal(err)
	}
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
	in := pbtxt.WarmUpInput{Name: "x", DataType: "BYTES", Shape: []int64{1}, File: "texts"}
	a := &Archive{warmUps: dir, Triton: &pbtxt.Config{}}
	for range pbtxt.MaxWarmUpBytes / maxSampleBytes {
		a.Triton.WarmUp = append(a.Triton.WarmUp, pbtxt.WarmUp{Name: "w", Count: 1, Inputs: []pbtxt.WarmUpInput{in}})
	}
	if samples, err := a.tritonSamples(); err != nil || len(samples) != len(a.Triton.WarmUp) {
		t.Fatalf("%d samples, %v", len(samples), err)
	}
	a.Triton.WarmUp = append(a.Triton.WarmUp, pbtxt.WarmUp{Name: "last", Count: 1, Inputs: []pbtxt.WarmUpInput{in}})
	want := fmt.Sprintf("take %d bytes together, and at most %d are allowed", pbtxt.MaxWarmUpBytes+maxSampleBytes, pbtxt.MaxWarmUpBytes)
	if _, err := a.tritonSamples(); err == nil || !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), `"last"`) {
		t.Error(err)
	}
}
