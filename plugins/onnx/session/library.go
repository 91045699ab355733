package session

/*
#include <stdlib.h>
#include "api.h"
*/
import "C"

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"unsafe"

	ort "github.com/yalue/onnxruntime_go"
)

// The oldest ONNX Runtime that has the interface this was built against (API 24), and the one that is fetched and tested.
const (
	oldestMinor = 24
	Tested      = "1.26.0"
)

// ErrNoLibrary is the error of Init when there is no ONNX Runtime.
var ErrNoLibrary = errors.New("ONNX Runtime is not there")

// Candidates lists where the library is looked for: the place that was named, or else beside the program, in the lib folder there, in the Python environment
// that the program is in or that was named, and in the system's folders. Of several versions in a folder the newest comes first.
func Candidates(named, program, pythonPrefix string) []string {
	if named != "" {
		if info, err := os.Stat(named); err == nil && info.IsDir() {
			return inFolder(named)
		}
		return []string{named}
	}
	var all []string
	beside := filepath.Dir(program)
	for _, dir := range []string{beside, filepath.Join(beside, "lib"), filepath.Join(beside, "..", "lib")} {
		all = append(all, inFolder(dir)...)
	}
	for _, prefix := range []string{pythonPrefix, filepath.Join(beside, ".."), filepath.Join(beside, "..", "..", "..", "..", "..")} {
		if prefix == "" {
			continue
		}
		dirs, err := filepath.Glob(filepath.Join(prefix, "lib", "python3*", "site-packages", "onnxruntime", "capi"))
		if err != nil { // a prefix with brackets
			continue
		}
		for _, dir := range dirs {
			all = append(all, inFolder(dir)...)
		}
	}
	for _, dir := range []string{"/usr/local/lib", "/usr/lib/x86_64-linux-gnu", "/usr/lib/aarch64-linux-gnu", "/usr/lib"} {
		all = append(all, inFolder(dir)...)
	}
	return all
}

const libraryName = "libonnxruntime.so"

// inFolder lists the libraries of a folder, the newest first.
func inFolder(dir string) []string {
	found, err := filepath.Glob(filepath.Join(dir, libraryName+"*"))
	if err != nil {
		return nil
	}
	slices.SortFunc(found, func(a, b string) int { return compareVersions(suffix(b), suffix(a)) })
	return found
}

func suffix(path string) string {
	_, version, _ := strings.Cut(filepath.Base(path), libraryName+".")
	return version
}

// compareVersions compares numbers between dots.
func compareVersions(a, b string) int {
	x, y := strings.Split(a, "."), strings.Split(b, ".")
	for i := range min(len(x), len(y)) {
		m, _ := strconv.Atoi(x[i]) // what is no number counts as 0
		n, _ := strconv.Atoi(y[i])
		if m != n {
			return m - n
		}
	}
	return len(x) - len(y)
}

// Init loads ONNX Runtime from the first of candidates that can be used, and gives its version. A process has one: later calls give the same.
func Init(candidates []string) (version string, err error) {
	if ort.IsInitialized() {
		return ort.GetVersion(), nil
	}
	if len(candidates) == 0 {
		return "", fmt.Errorf("%w: %s", ErrNoLibrary, howToGet)
	}
	var problems []string
	for _, path := range candidates {
		ort.SetSharedLibraryPath(path)
		err := ort.InitializeEnvironment(ort.WithLogLevelWarning())
		if err == nil {
			if err := loadAPI(path); err != nil {
				return "", err // the same file was good enough a moment ago
			}
			version := ort.GetVersion()
			_ = ort.DisableTelemetry() // there is none on Linux
			return version, nil
		}
		problems = append(problems, fmt.Sprintf("%s: %s", path, reason(err)))
	}
	return "", fmt.Errorf("%w: %s; %s", ErrNoLibrary, strings.Join(problems, "; "), howToGet)
}

var howToGet = fmt.Sprintf("version 1.%d or later is needed: pip install onnxruntime==%s in the server's Python environment, or name the library by "+ //nolint:gochecknoglobals // a text
	"FLAMBEAU_ONNXRUNTIME", oldestMinor, Tested)

// loadAPI takes the functions that the binding has not from the library that it has loaded.
func loadAPI(path string) error {
	name := C.CString(path)
	defer C.free(unsafe.Pointer(name))
	if problem := C.ort_load(name); problem != nil {
		return fmt.Errorf("%s: %s", path, C.GoString(problem))
	}
	return nil
}

// reason shortens what the library says.
func reason(err error) string {
	text := err.Error()
	if strings.HasSuffix(text, "API base: 2") { // the binding's number for: it has no such version
		return fmt.Sprintf("it is older than 1.%d", oldestMinor)
	}
	return text
}
