package python

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/flambeau-serve/flambeau/plugins/backend"
)

// home makes a folder with what a worker needs.
func home(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	for _, file := range []string{"flambeau/worker/__main__.py", "flambeau/_lib/libflambeau.so"} {
		path := filepath.Join(dir, file)
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

func TestSpec(t *testing.T) {
	dir := home(t)
	c, err := New(Options{
		Find: func() (Place, error) {
			return Place{Interpreter: "/usr/bin/python", Python3: "/usr/bin/python3", Home: dir}, nil
		},
		DecodeInput: true, MetricsConfig: "/etc/metrics.yaml",
		Env:    []string{"PATH=/bin", "SECRET_KEY=x", "TS_DECODE_INPUT_REQUEST=false", "FLAMBEAU_PLUGIN=old", "FLAMBEAU_MODEL_PACKAGES=/old", "PYTHONPATH=/extra"},
		Hidden: func(name string) bool { return strings.HasPrefix(name, "SECRET") },
	})
	if err != nil {
		t.Fatal(err)
	}
	want := backend.ProcessSpec{
		Path: "/usr/bin/python", Args: []string{filepath.Join(dir, "flambeau/worker/__main__.py")}, Dir: "/models/m",
		Env: []string{
			"PATH=/bin", "PYTHONPATH=/extra", "FLAMBEAU_METRICS_CONFIG=/etc/metrics.yaml", "FLAMBEAU_LIBRARY=" + filepath.Join(dir, "flambeau/_lib/libflambeau.so"),
			"TS_DECODE_INPUT_REQUEST=true", "TS_IPEX_ENABLE=false", "TS_IPEX_GPU_ENABLE=false",
		},
	}
	for runtime, path := range map[string]string{"python": "/usr/bin/python", "python3": "/usr/bin/python3"} {
		want.Path = path
		got, err := c.Spec(runtime, "/models/m")
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%s: %s", runtime, diff)
		}
	}
	if _, err := c.Spec("LSP", "/models/m"); err == nil {
		t.Error("a command for C++ was made")
	}
}

// TestMissingParts has a machine that gets its Python while the server runs.
func TestMissingParts(t *testing.T) {
	if _, err := New(Options{}); err == nil {
		t.Error("no error without Find")
	}
	place, asked := Place{}, 0
	absent := errors.New("no Python is here; install one")
	c, err := New(Options{Find: func() (Place, error) {
		asked++
		if place.Home == "" {
			return place, absent
		}
		return place, nil
	}})
	if err != nil {
		t.Fatal(err)
	}
	missing := (*MissingError)(nil)
	for what, err := range map[string]error{"Missing": c.Missing(), "Spec": second(c.Spec("python", "/m")), "InstallScript": second(c.InstallScript()), "InspectScript": second(c.InspectScript())} {
		if !errors.Is(err, absent) || !errors.As(err, &missing) || !missing.NoPython() || err.Error() != absent.Error() {
			t.Errorf("%s: %v", what, err)
		}
	}
	if _, err := c.Spec("LSP", "/m"); err == nil || errors.As(err, &missing) {
		t.Errorf("C++ is refused for want of Python: %v", err)
	}
	if p := c.Prefix(); p != "" {
		t.Errorf("prefix %q", p)
	}
	place = Place{Interpreter: "/venv/bin/python", Home: t.TempDir()}
	if err := c.Missing(); err == nil || !strings.Contains(err.Error(), "__main__.py") || !strings.Contains(err.Error(), "make build") || !errors.As(err, &missing) {
		t.Errorf("%v: it should name the file and what to do", err)
	}
	place.Home = home(t)
	asked = 0
	for range 2 {
		spec, err := c.Spec("python3", "/m")
		if err != nil || spec.Path != "/venv/bin/python" {
			t.Errorf("%+v, %v", spec, err)
		}
	}
	script, err := c.InspectScript()
	if want := filepath.Join(place.Home, "flambeau", "inspection", "__main__.py"); script != want || err != nil {
		t.Errorf("%q, %v, want %q", script, err, want)
	}
	if p := c.Prefix(); p != "/venv" || asked != 1 {
		t.Errorf("prefix %q; looked %d times for what was found", p, asked)
	}
}

func second[T any](_ T, err error) error { return err }

func TestExtras(t *testing.T) {
	spec := backend.ProcessSpec{Path: "/usr/bin/python", Env: []string{"A=1"}}
	if diff := cmp.Diff(spec, Extras{}.Add(spec)); diff != "" {
		t.Error(diff)
	}
	want := backend.ProcessSpec{Path: "/venv/bin/python", Env: []string{"A=1", "FLAMBEAU_MODEL_PACKAGES=/p", "FLAMBEAU_REQUIREMENTS_INSTALLED=true"}}
	if diff := cmp.Diff(want, Extras{Interpreter: "/venv/bin/python", Packages: "/p", Installed: true}.Add(spec)); diff != "" {
		t.Error(diff)
	}
}
