package check

import (
	"archive/zip"
	"bytes"
	"encoding/binary"
	"strings"
	"testing"
)

// zipped makes a zip file.
func zipped(t *testing.T, files map[string]string) string {
	t.Helper()
	var b bytes.Buffer
	w := zip.NewWriter(&b)
	for name, text := range files {
		f, err := w.Create(name)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := f.Write([]byte(text)); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return b.String()
}

// Pickles: an empty dict, a state dict that holds an argparse.Namespace, and a call of os.system.
const (
	emptyPickle     = "\x80\x02}q\x00."
	namespacePickle = "\x80\x02cargparse\nNamespace\nq\x00)\x81q\x01}q\x02b."
	systemPickle    = "\x80\x04\x95\x1b\x00\x00\x00\x00\x00\x00\x00\x8c\x05posix\x94\x8c\x06system\x94\x93\x94\x8c\x02id\x94\x85\x94R\x94."
)

// TestPlantedInFiles: faults of files other than code.
func TestPlantedInFiles(t *testing.T) {
	t.Parallel()
	installed := map[string]string{"torch": "2.15.0", "onnxruntime": "1.20.1", "numpy": "2.4.6", "pillow": "13.0.0"}
	torchScript := func(format string) string {
		return zipped(t, map[string]string{"m/code/__torch__.py": "", "m/constants.pkl": emptyPickle, "m/data.pkl": emptyPickle, "m/version": format})
	}
	wheel := func(python string) string {
		return zipped(t, map[string]string{"tiny/__init__.py": "", "tiny-1.0.dist-info/METADATA": "Metadata-Version: 2.1\nRequires-Python: " + python + "\n\n"})
	}
	require := func(text string) (map[string]string, string) {
		return map[string]string{"requirements.txt": text}, `, "requirementsFile": "requirements.txt"`
	}
	conflict, withRequirements := require("numpy>=1\ntorch==1.8\nnobody-has\nold; python_version < '3.8'\nx===\n")
	noGPU := 0
	tests := []struct {
		name  string
		model model
		opts  Options
		want  []want
	}{
		{"good", model{files: map[string]string{"m.pt": torchScript("3")}, handler: noHandler, manifest: `, "serializedFile": "m.pt"`}, Options{}, nil},
		{
			"files that the manifest names",
			model{manifest: `, "serializedFile": "a.pt", "modelFile": "b.py", "configFile": "c.yaml"`},
			Options{},
			[]want{
				{"error manifest_file_missing MAR-INF/MANIFEST.json:6", []string{"a.pt", "--serialized-file"}},
				{"error manifest_file_missing MAR-INF/MANIFEST.json:6", []string{"b.py", "--model-file"}},
				{"error manifest_file_missing MAR-INF/MANIFEST.json:6", []string{"c.yaml", "--config-file"}},
			},
		},
		{
			"values of the manifest",
			model{top: `, "runtime": "ruby"`, handler: noHandler, manifest: `, "modelName": "a b", "modelVersion": "1/2"`},
			Options{},
			[]want{
				{"warning manifest_value MAR-INF/MANIFEST.json:4", []string{`"a b"`}},
				{"warning manifest_value MAR-INF/MANIFEST.json:6", []string{`"1/2"`}},
				{"error weights_format MAR-INF/MANIFEST.json", []string{"neither"}},
			},
		},
		{
			"a state dict without its class",
			model{files: map[string]string{"m.pt": zipped(t, map[string]string{"m/data.pkl": emptyPickle, "m/version": "3"})}, handler: noHandler, manifest: `, "serializedFile": "m.pt"`},
			Options{},
			[]want{{"error weights_format m.pt", []string{"a torch.save file", "--model-file"}}},
		},
		{
			"another ending",
			model{files: map[string]string{"m.pth": "x"}, handler: noHandler, manifest: `, "serializedFile": "m.pth"`},
			Options{},
			[]want{{"error weights_format MAR-INF/MANIFEST.json:6", []string{"m.pth"}}},
		},
		{
			"TorchScript of a newer torch",
			model{files: map[string]string{"m.pt": torchScript("11")}, handler: noHandler, manifest: `, "serializedFile": "m.pt"`},
			Options{},
			[]want{{"error weights_version m.pt", []string{"version 11", "torch 2.15.0 reads 10"}}},
		},
		{
			"a truncated file",
			model{files: map[string]string{"m.pt": torchScript("3")[:200]}, handler: noHandler, manifest: `, "serializedFile": "m.pt"`},
			Options{},
			[]want{{"error weights_corrupt m.pt", []string{"a zip file"}}},
		},
		{
			"a pickle that calls",
			model{files: map[string]string{"extra.pkl": systemPickle, "m.pt": torchScript("3")}, handler: noHandler, manifest: `, "serializedFile": "m.pt"`},
			Options{},
			[]want{{"warning pickle_unsafe extra.pkl", []string{"posix.system"}}},
		},
		{
			"a pickle that torch.load refuses",
			model{files: map[string]string{"w.pt": zipped(t, map[string]string{"w/data.pkl": namespacePickle}), "net.py": "class N: pass"}, handler: noHandler, manifest: `, "serializedFile": "w.pt", "modelFile": "net.py"`},
			Options{},
			[]want{{"warning pickle_globals w.pt", []string{"argparse.Namespace", "state_dict"}}},
		},
		{
			"ONNX for a newer runtime",
			model{files: map[string]string{"m.onnx": onnx(12, 24, "", nil)}, handler: noHandler, manifest: `, "serializedFile": "m.onnx"`},
			Options{},
			[]want{{"error onnx_version m.onnx", nil}, {"error onnx_version m.onnx", []string{"onnxruntime 1.20.1 loads"}}},
		},
		{
			"ONNX with other operators and files",
			model{files: map[string]string{"m.onnx": onnx(8, 17, "my.domain", map[string]string{"location": "w.bin", "length": "10"})}, handler: noHandler, manifest: `, "serializedFile": "m.onnx"`},
			Options{},
			[]want{{"error onnx_external_data m.onnx", []string{"w.bin"}}, {"warning onnx_domain m.onnx", []string{`"my.domain"`, "Relu"}}},
		},
		{
			"ONNX that is cut off",
			model{files: map[string]string{"m.onnx": onnx(8, 17, "", nil)[:20]}, handler: noHandler, manifest: `, "serializedFile": "m.onnx"`},
			Options{},
			[]want{{"error weights_corrupt m.onnx", []string{"cut off"}}},
		},
		{
			"safetensors",
			model{files: map[string]string{
				"good.safetensors": tensors(`{"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]},"__metadata__":{"x":"y"}}`, 8),
				"cut.safetensors":  tensors(`{"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}}`, 7),
				"odd.safetensors":  tensors(`{"a":{"dtype":"F32","shape":[3],"data_offsets":[0,8]}}`, 8),
				"m.pt":             torchScript("3"),
			}, handler: noHandler, manifest: `, "serializedFile": "m.pt"`},
			Options{},
			[]want{{"error weights_corrupt cut.safetensors", []string{"cut off"}}, {"error weights_corrupt odd.safetensors", []string{"12 bytes"}}},
		},
		{
			"pointers of Git LFS",
			model{files: map[string]string{"m.pt": "version https://git-lfs.github.com/spec/v1\noid sha256:1\nsize 5\n"}, handler: noHandler, manifest: `, "serializedFile": "m.pt"`},
			Options{},
			[]want{{"error git_lfs_pointer m.pt:1", []string{"git lfs pull"}}},
		},
		{
			"labels",
			model{files: map[string]string{"m.pt": torchScript("3"), "index_to_name.json": "{\n\"0\": 1}"}, handler: noHandler, manifest: `, "serializedFile": "m.pt"`},
			Options{},
			[]want{{"error labels_invalid index_to_name.json:2", nil}},
		},
		{
			"labels that are no JSON",
			model{files: map[string]string{"m.pt": torchScript("3"), "index_to_name.json": "{\n\"0\": \"a\",}"}, handler: noHandler, manifest: `, "serializedFile": "m.pt"`},
			Options{},
			[]want{{"error labels_invalid index_to_name.json:2", nil}},
		},
		{
			"wheels",
			model{files: map[string]string{
				"tiny-1.0-py3-none-any.whl": wheel(">=3.8"), "a-1.0-cp38-cp38-manylinux1_x86_64.whl": wheel(""), "b-1.0-py3-none-win_amd64.whl": wheel(""),
				"c-1.0-py3-none-any.whl": wheel("<3.9"), "d-1.0-cp311-cp311-manylinux_2_99_x86_64.whl": wheel(""), "e.whl": "", "f-1.0-cp38-abi3-linux_x86_64.whl": wheel(""),
				"m.pt": torchScript("3"), "requirements.txt": "./b-1.0-py3-none-win_amd64.whl\n",
			}, handler: noHandler, manifest: `, "serializedFile": "m.pt", "requirementsFile": "requirements.txt"`},
			Options{Installs: true},
			[]want{
				{"warning wheel_unfit a-1.0-cp38-cp38-manylinux1_x86_64.whl", []string{"cp38"}},
				{"error wheel_unfit b-1.0-py3-none-win_amd64.whl", []string{"win_amd64"}},
				{"warning wheel_python c-1.0-py3-none-any.whl", []string{"<3.9", "3.11.7"}},
				{"warning wheel_unfit d-1.0-cp311-cp311-manylinux_2_99_x86_64.whl", []string{"2.36"}},
				{"warning wheel_name e.whl", nil},
			},
		},
		{
			"requirements",
			model{files: merged(conflict, "m.pt", torchScript("3")), handler: noHandler, manifest: withRequirements + `, "serializedFile": "m.pt"`},
			Options{},
			[]want{
				{"warning requirement_conflict requirements.txt:2", []string{"torch==1.8", "2.15.0"}},
				{"warning requirement_not_installed requirements.txt:3", []string{"nobody-has"}},
				{"warning requirement_malformed requirements.txt:5", []string{"x==="}},
			},
		},
		{
			"the configuration file",
			model{files: map[string]string{"m.pt": torchScript("3"), "c.yaml": strings.Join([]string{
				"minWorkers: 3", "maxWorkers: 2", "batch_size: 4", "maxBatchDelays: 10", "responseTimeout: soon", "sequenceBatching: true", "torchrun:",
				"  nproc-per-node: 2", "deviceIds: [0, 7]", "handler:", "  batchsize: 3", "deviceType: gpu", "",
			}, "\n")}, handler: noHandler, manifest: `, "serializedFile": "m.pt", "configFile": "c.yaml"`},
			Options{GPUs: &noGPU},
			[]want{
				{"warning config_contradiction c.yaml:1", []string{"minWorkers is 3 and maxWorkers 2"}},
				{"warning config_unknown_key c.yaml:3", []string{"batchSize"}},
				{"warning config_unknown_key c.yaml:4", []string{"maxBatchDelay"}},
				{"warning config_value c.yaml:5", []string{"responseTimeout", "soon"}},
				{"warning config_contradiction c.yaml:6", []string{"sequenceMaxIdleMSec"}},
				{"warning config_contradiction c.yaml:7", []string{"parallelType"}},
				{"warning config_devices c.yaml:9", nil},
				{"warning config_devices c.yaml:9", []string{"0 GPUs"}},
				{"warning config_devices c.yaml:12", nil},
			},
		},
		{
			"a configuration file that is no YAML",
			model{files: map[string]string{"m.pt": torchScript("3"), "c.yaml": "a: [1\nb: }"}, handler: noHandler, manifest: `, "serializedFile": "m.pt", "configFile": "c.yaml"`},
			Options{},
			[]want{{"error config_unreadable c.yaml", nil}},
		},
		{
			"memory",
			model{files: map[string]string{"m.pt": torchScript("3"), "w.bin": strings.Repeat("\x01", 65<<20)}, handler: noHandler, manifest: `, "serializedFile": "m.pt"`},
			Options{MemoryBytes: 100 << 20, Workers: 2},
			[]want{{"warning memory_short", []string{"65 MiB in each of 2 workers", "100 MiB", "1 worker would fit"}}},
		},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			tt.opts.Inspector = someFacts(installed)
			a := tt.model.archive(t)
			if a.Manifest.Runtime == "ruby" {
				a.Manifest.Runtime = "python" // the one that wins is not what is looked at here
			}
			r := check(t, tt.opts, a)
			expect(t, &r, tt.want)
		})
	}
}

func merged(files map[string]string, name, text string) map[string]string {
	files[name] = text
	return files
}

// tensors makes a safetensors file.
func tensors(header string, data int) string {
	return string(binary.LittleEndian.AppendUint64(nil, uint64(len(header)))) + header + strings.Repeat("\x00", data)
}

// field encodes one field of a protobuf message.
func encode(number int, value any) string {
	switch v := value.(type) {
	case int:
		return string(binary.AppendUvarint(binary.AppendUvarint(nil, uint64(number)<<3), uint64(v)))
	case string:
		return string(binary.AppendUvarint(binary.AppendUvarint(nil, uint64(number)<<3|2), uint64(len(v)))) + v
	}
	return ""
}

// onnx makes a model with one node and one tensor.
func onnx(ir, opset int, domain string, external map[string]string) string {
	n := encode(nodeOp, "Relu")
	if domain != "" {
		n += encode(nodeDomain, domain)
	}
	var entries strings.Builder
	for key, value := range external {
		entries.WriteString(encode(tensorExternal, encode(entryKey, key)+encode(entryValue, value)))
	}
	tensor := encode(1, 4) + encode(2, 1) + entries.String()
	if external != nil {
		tensor += encode(tensorLocation, 1)
	}
	graph := encode(graphNode, n) + encode(graphInitializer, tensor)
	return encode(modelIR, ir) + encode(modelProducer, "test") + encode(modelGraph, graph) + encode(modelOpset, encode(opsetVersion, opset))
}
