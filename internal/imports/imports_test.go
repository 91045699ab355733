package imports

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
)

const (
	module = "github.com/flambeau-serve/flambeau"
	page   = "../../docs/architecture.md"
)

// pkg is what `go list -json` says of a package.
type pkg struct {
	ImportPath string
	Standard   bool
	Imports    []string
	Deps       []string
	CgoFiles   []string
}

// ours gives the path inside this module, and whether the package belongs to it.
func ours(path string) (string, bool) { return strings.CutPrefix(path, module+"/") }

// list asks the go command for every package of this module and everything that they are built from.
func list(t *testing.T) map[string]pkg {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "go", "list", "-deps", "-json=ImportPath,Standard,Imports,Deps,CgoFiles", "./...")
	cmd.Dir = "../.."
	cmd.Env = append(os.Environ(), "CGO_ENABLED=1") // so that files with cgo are seen
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("go list: %v\n%s", err, stderr.String())
	}
	all := map[string]pkg{}
	decoder := json.NewDecoder(bytes.NewReader(out))
	for {
		var p pkg
		err := decoder.Decode(&p)
		if errors.Is(err, io.EOF) {
			return all
		}
		if err != nil {
			t.Fatalf("output of go list: %v", err)
		}
		all[p.ImportPath] = p
	}
}

// rows gives the cells of the table that follows a marker comment in the page, without its head.
func rows(t *testing.T, marker string) [][]string {
	t.Helper()
	text, err := os.ReadFile(page)
	if err != nil {
		t.Fatal(err)
	}
	_, after, found := strings.Cut(string(text), "<!-- "+marker+" -->\n")
	if !found {
		t.Fatalf("%s has no table marked %q", page, marker)
	}
	var table [][]string
	for line := range strings.Lines(strings.TrimLeft(after, "\n")) {
		line = strings.TrimSpace(line)
		if !strings.HasPrefix(line, "|") {
			break
		}
		cells := strings.Split(strings.Trim(line, "|"), "|")
		for i := range cells {
			cells[i] = strings.TrimSpace(cells[i])
		}
		table = append(table, cells)
	}
	if len(table) < 3 {
		t.Fatalf("the table %q in %s is empty", marker, page)
	}
	return table[2:]
}

var quoted = regexp.MustCompile("`([^`]+)`")

// names gives what stands in backquotes in a cell.
func names(cell string) []string {
	var all []string
	for _, m := range quoted.FindAllStringSubmatch(cell, -1) {
		all = append(all, m[1])
	}
	return all
}

// row is one package of the layer table.
type row struct {
	layer int
	may   []string // packages of ours that it may import
	any   bool     // it may import anything of ours
}

func layers(t *testing.T) map[string]row {
	t.Helper()
	table := map[string]row{}
	for _, cells := range rows(t, "layers") {
		layer, err := strconv.Atoi(cells[0])
		if err != nil || len(cells) != 4 {
			t.Fatalf("bad row in the layer table: %q", cells)
		}
		for _, name := range names(cells[1]) {
			table[name] = row{layer: layer, may: names(cells[3]), any: cells[3] == "anything"}
		}
	}
	return table
}

// covers says whether a name of a table means a package: "cmd/…" means all below cmd.
func covers(name, path string) bool {
	if prefix, found := strings.CutSuffix(name, "/…"); found {
		return path == prefix || strings.HasPrefix(path, prefix+"/")
	}
	return name == path
}

func find(table map[string]row, path string) (row, bool) {
	if r, found := table[path]; found {
		return r, true
	}
	for name, r := range table {
		if covers(name, path) {
			return r, true
		}
	}
	return row{}, false
}

// TestImports holds the code to the tables of docs/architecture.md: what may import what, and who alone may import a library.
func TestImports(t *testing.T) {
	lookAtSources(t)
	packages := list(t)
	t.Run("layers", func(t *testing.T) { checkLayers(t, packages, layers(t)) })
	t.Run("sole importers", func(t *testing.T) { checkSole(t, packages) })
	t.Run("the server needs no C compiler and nothing of the plugin's side", func(t *testing.T) { checkServer(t, packages) })
	t.Run("the SDK stands alone", func(t *testing.T) { checkSDK(t, packages) })
	t.Run("the nouns need the standard library only", func(t *testing.T) {
		for _, dep := range packages[module+"/internal/infer"].Deps {
			if !packages[dep].Standard {
				t.Errorf("internal/infer depends on %s", dep)
			}
		}
	})
}

// lookAtSources looks at every source file, so that the go command does not give a result from before a change: it knows what a test has looked at,
// but not what a command that it has run did.
func lookAtSources(t *testing.T) {
	t.Helper()
	for _, dir := range []string{"cmd", "frontend", "handlersdk", "internal", "modelstore", "plugins", "proto", "test"} {
		err := filepath.WalkDir(filepath.Join("../..", dir), func(path string, entry os.DirEntry, err error) error {
			if err != nil || entry.IsDir() || filepath.Ext(path) != ".go" {
				return err
			}
			_, err = os.Stat(path)
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
	}
}

func checkLayers(t *testing.T, packages map[string]pkg, table map[string]row) {
	t.Helper()
	for _, p := range packages {
		name, our := ours(p.ImportPath)
		if !our {
			continue
		}
		r, found := find(table, name)
		if !found {
			t.Errorf("%s is not in the layer table of docs/architecture.md", name)
			continue
		}
		for _, path := range p.Imports {
			dep, our := ours(path)
			if !our || r.any {
				continue
			}
			if !slices.ContainsFunc(r.may, func(may string) bool { return covers(may, dep) }) {
				t.Errorf("%s imports %s, which its row of the layer table does not allow", name, dep)
			}
		}
	}
	for name, r := range table {
		for _, may := range r.may {
			rows := 0
			for other, below := range table {
				if !covers(may, other) || other == name {
					continue
				}
				rows++
				if below.layer >= r.layer {
					t.Errorf("the layer table lets %s (layer %d) import %s (layer %d)", name, r.layer, other, below.layer)
				}
			}
			if rows == 0 {
				t.Errorf("the layer table lets %s import %s, which has no row", name, may)
			}
		}
		if !slices.ContainsFunc(slices.Collect(keys(packages)), func(path string) bool {
			path, our := ours(path)
			return our && covers(name, path)
		}) {
			t.Errorf("the layer table names %s, which does not exist", name)
		}
	}
}

// keys gives the map's keys in any order.
func keys(packages map[string]pkg) func(func(string) bool) {
	return func(yield func(string) bool) {
		for path := range packages {
			if !yield(path) {
				return
			}
		}
	}
}

func checkSole(t *testing.T, packages map[string]pkg) {
	t.Helper()
	for _, cells := range rows(t, "sole importers") {
		libraries, importers := names(cells[0]), names(cells[1])
		for _, p := range packages {
			name, our := ours(p.ImportPath)
			if !our || slices.ContainsFunc(importers, func(i string) bool { return covers(i, name) }) {
				continue
			}
			for _, path := range p.Imports {
				if slices.ContainsFunc(libraries, func(l string) bool { return covers(l, path) }) {
					t.Errorf("%s imports %s, which is for %s only", name, path, cells[1])
				}
			}
		}
	}
}

func checkServer(t *testing.T, packages map[string]pkg) {
	t.Helper()
	const sdk = module + "/handlersdk"
	server, found := packages[module+"/cmd/flambeau"]
	if !found {
		t.Fatal("there is no cmd/flambeau")
	}
	for _, path := range server.Deps {
		dep := packages[path]
		if !dep.Standard && len(dep.CgoFiles) > 0 {
			t.Errorf("cmd/flambeau depends on %s, which needs cgo", path)
		}
		if path == sdk || slices.Contains(dep.Deps, sdk) {
			t.Errorf("cmd/flambeau depends on %s: the plugin's side of the border", path)
		}
	}
}

func checkSDK(t *testing.T, packages map[string]pkg) {
	t.Helper()
	allowed := []string{"handlersdk/…", "proto/…"}
	unwanted := []string{"github.com/gin-gonic/…", "github.com/prometheus/…", "github.com/goccy/…", "github.com/fsnotify/…", "go.opentelemetry.io/…"}
	for _, p := range packages {
		if name, our := ours(p.ImportPath); !our || !covers("handlersdk/…", name) {
			continue
		}
		for _, path := range p.Deps {
			if name, our := ours(path); our && !slices.ContainsFunc(allowed, func(a string) bool { return covers(a, name) }) {
				t.Errorf("%s depends on %s: a plugin author would get our internals", p.ImportPath, name)
			}
			if slices.ContainsFunc(unwanted, func(u string) bool { return covers(u, path) }) {
				t.Errorf("%s depends on %s: a plugin author would inherit it", p.ImportPath, path)
			}
		}
	}
}
