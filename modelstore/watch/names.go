package watch

import "strings"

// Names that say what a folder holds.
const (
	manifestFolder = "MAR-INF"
	configFile     = "model-config.yaml"
	onnxFile       = "model.onnx"
)

// fileKind gives the kind of a file by its name, and the model's name if that says it. TorchServe takes .mar, .model and .tar.gz for archives.
func fileKind(file string) (kind Kind, name string, ok bool) {
	stem, onnx := strings.CutSuffix(file, ".onnx")
	switch {
	case onnx:
		return ONNX, stem, true
	case strings.HasSuffix(file, ".mar"):
		return Mar, "", true
	case strings.HasSuffix(file, ".tar.gz"), strings.HasSuffix(file, ".tgz"), strings.HasSuffix(file, ".model"):
		return Tarball, "", true
	default:
		return "", "", false
	}
}

// isVersion says whether a folder's name is a version: numbers with dots between them.
func isVersion(name string) bool {
	for part := range strings.SplitSeq(name, ".") {
		if part == "" || strings.Trim(part, "0123456789") != "" {
			return false
		}
	}
	return true
}

// ignored says whether a name is no part of a model: hidden files, what editors, rsync and downloads leave while they work, folders that are being
// put together, and what Python writes beside the code that it runs.
func ignored(name string, dir bool) bool {
	switch {
	case name == "", name[0] == '.', strings.HasSuffix(name, "~"), name == "__pycache__", name == "lost+found":
		return true
	case dir:
	case name[0] == '#' && strings.HasSuffix(name, "#"), name == "4913": // Emacs; vim, which tries whether it can write
		return true
	}
	for _, suffix := range []string{
		".pyc", ".swp", ".swo", ".swx", ".tmp", ".temp", ".part", ".partial", ".filepart", ".crdownload", ".download", ".aria2",
	} {
		if strings.HasSuffix(name, suffix) {
			return true
		}
	}
	return false
}

// telling says whether an event about a name may mean that an entry has changed. Names that begin with two dots are hidden, but they are the
// links that Kubernetes swaps.
func telling(name string) bool {
	return strings.HasPrefix(name, "..") || !ignored(name, false) || !ignored(name, true)
}
