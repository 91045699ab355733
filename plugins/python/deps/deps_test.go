package deps

import (
	"archive/zip"
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/flambeau-serve/flambeau/internal/fault"
	"github.com/flambeau-serve/flambeau/internal/infer"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// records is a log that tests read.
type records struct {
	mu   sync.Mutex // guards text
	text bytes.Buffer
}

func (r *records) Write(p []byte) (int, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.text.Write(p)
}

func (r *records) count(part string) int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return strings.Count(r.text.String(), part)
}

const (
	installing = "installing the model's packages"
	kept       = "installed before"
)

// bench is a place to install in: real Python, real pip, and a folder of two wheels in place of an index.
type bench struct {
	python, wheels, cache string
	env                   []string
	log                   *records
}

func newBench(t *testing.T) *bench {
	t.Helper()
	if testing.Short() {
		t.Skip("runs pip")
	}
	out, err := exec.CommandContext(t.Context(), "python3", "-c", "import sys, pip, venv; print(sys.executable)").Output()
	if err != nil {
		t.Skipf("no python3 with pip and venv: %v", err)
	}
	b := &bench{python: strings.TrimSpace(string(out)), wheels: t.TempDir(), cache: t.TempDir(), log: &records{}}
	for _, entry := range os.Environ() {
		if !strings.HasPrefix(entry, "PIP_") && !strings.HasPrefix(entry, "PYTHON") {
			b.env = append(b.env, entry)
		}
	}
	b.env = append(b.env, "PIP_CONFIG_FILE=/dev/null", "PIP_NO_INDEX=1", "PIP_FIND_LINKS="+b.wheels)
	for _, version := range []string{"1.0", "2.0"} {
		wheel(t, b.wheels, version, version)
	}
	return b
}

// wheel makes a wheel of tiny, a package whose module has its version, or what is to pass for it.
func wheel(t *testing.T, dir, version, value string) {
	t.Helper()
	info := "tiny-" + version + ".dist-info/"
	files := [][2]string{
		{"tiny.py", fmt.Sprintf("V = %q\n\n\ndef main():\n    print(V)\n", value)},
		{info + "METADATA", "Metadata-Version: 2.1\nName: tiny\nVersion: " + version + "\n"},
		{info + "WHEEL", "Wheel-Version: 1.0\nGenerator: hand\nRoot-Is-Purelib: true\nTag: py3-none-any\n"},
		{info + "entry_points.txt", "[console_scripts]\ntiny = tiny:main\n"},
	}
	var record strings.Builder
	for _, f := range files {
		record.WriteString(f[0] + ",,\n")
	}
	files = append(files, [2]string{info + "RECORD", record.String() + info + "RECORD,,\n"})
	var text bytes.Buffer
	z := zip.NewWriter(&text)
	for _, f := range files {
		w, err := z.Create(f[0])
		if err == nil {
			_, err = w.Write([]byte(f[1]))
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	if err := errors.Join(z.Close(), os.WriteFile(filepath.Join(dir, "tiny-"+version+"-py3-none-any.whl"), text.Bytes(), 0o600)); err != nil {
		t.Fatal(err)
	}
}

func (b *bench) installer(t *testing.T, change func(*Options)) *Installer {
	t.Helper()
	script, err := filepath.Abs("../../../python_compat/src/flambeau/dependencies.py")
	if err != nil {
		t.Fatal(err)
	}
	opts := Options{
		Script: func() (string, error) { return script, nil }, Folders: []string{b.cache}, Env: b.env, Requirements: true, Limit: time.Minute, Logger: slog.New(slog.NewTextHandler(b.log, nil)),
	}
	if change != nil {
		change(&opts)
	}
	i, err := New(opts)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(i.Close)
	return i
}

// model makes a model's folder with those files.
func model(t *testing.T, files ...string) string {
	t.Helper()
	dir := t.TempDir()
	for i := 0; i+1 < len(files); i += 2 {
		path := filepath.Join(dir, files[i])
		if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o700), os.WriteFile(path, []byte(files[i+1]), 0o600)); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

func (b *bench) request(name, dir string) Request {
	return Request{Model: infer.ModelRef{Name: name, Version: "1.0"}, Interpreter: b.python, Dir: dir, Requirements: "requirements.txt"}
}

func install(t *testing.T, i *Installer, r Request) *Environment {
	t.Helper()
	env, err := i.Install(t.Context(), r)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(env.Release)
	return env
}

// tinys gives the version that a worker of that environment would import.
func tinys(t *testing.T, env *Environment) string {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), env.Interpreter, "-c", "import tiny; print(tiny.V)") //nolint:gosec // our own
	cmd.Env = append(os.Environ(), "PYTHONPATH="+env.Packages)
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	return strings.TrimSpace(string(out))
}

// left lists what is in the cache.
func (b *bench) left(t *testing.T) []string {
	t.Helper()
	all, err := filepath.Glob(filepath.Join(b.cache, layout, "*"))
	if err != nil {
		t.Fatal(err)
	}
	return all
}

func TestTwoVersionsAtTheSameTime(t *testing.T) {
	t.Parallel()
	for _, venv := range []bool{false, true} {
		b := newBench(t)
		i := b.installer(t, nil)
		var got []string
		for _, version := range []string{"1.0", "2.0"} {
			r := b.request("m"+version, model(t, "requirements.txt", "tiny=="+version+"\n"))
			r.Venv = venv
			env := install(t, i, r)
			if !env.Installed || (env.Interpreter == b.python) == venv || (env.Packages == "") != venv {
				t.Errorf("virtual environment %v: %+v", venv, env)
			}
			got = append(got, tinys(t, env))
			if venv {
				out, err := exec.CommandContext(t.Context(), filepath.Join(filepath.Dir(env.Interpreter), "tiny")).Output() //nolint:gosec // our own
				if err != nil || strings.TrimSpace(string(out)) != version {
					t.Errorf("the command of the package says %q, %v", out, err)
				}
				if out, err := exec.CommandContext(t.Context(), env.Interpreter, "-m", "pip", "--version").CombinedOutput(); err != nil { //nolint:gosec // our own
					t.Errorf("packages of the server's Python are not inherited: %v\n%s", err, out)
				}
			}
		}
		if strings.Join(got, " ") != "1.0 2.0" {
			t.Errorf("virtual environment %v: the models see %q", venv, got)
		}
	}
}

func TestASecondStartInstallsNothing(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	for range 2 { // each as another server, with another unpacked folder
		i := b.installer(t, nil)
		env := install(t, i, b.request("m", model(t, "requirements.txt", "tiny==1.0\n")))
		if v := tinys(t, env); v != "1.0" {
			t.Error(v)
		}
		env.Release()
		i.Close()
		if err := os.RemoveAll(filepath.Join(b.wheels, "tiny-1.0-py3-none-any.whl")); err != nil {
			t.Fatal(err)
		}
	}
	if n, m := b.log.count(installing), b.log.count(kept); n != 1 || m != 1 {
		t.Errorf("%d installations, %d times the earlier one: want 1 and 1", n, m)
	}
}

func TestServersAtTheSameTimeInstallOnce(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	dir := model(t, "requirements.txt", "tiny==2.0\n")
	var all sync.WaitGroup
	for range 2 {
		i := b.installer(t, nil)
		for range 2 {
			all.Go(func() {
				env, err := i.Install(t.Context(), b.request("m", dir))
				if err != nil {
					t.Error(err)
					return
				}
				defer env.Release()
				if _, err := os.Stat(filepath.Join(env.Packages, "tiny.py")); err != nil {
					t.Error(err)
				}
			})
		}
	}
	all.Wait()
	if n := b.log.count(installing); n != 1 {
		t.Errorf("%d installations, want 1", n)
	}
}

func TestAMissingWheel(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	i := b.installer(t, nil)
	_, err := i.Install(t.Context(), b.request("m", model(t, "requirements.txt", "tiny==3.0\n")))
	var f *fault.Error
	if !errors.As(err, &f) || f.Kind != fault.DependencyFailed || f.Message != "Custom pip package installation failed for model m" ||
		!strings.Contains(f.Hint, "No matching distribution found for tiny==3.0") || !strings.Contains(f.Detail, "from versions: 1.0, 2.0") {
		t.Errorf("%#v", err)
	}
	if left := b.left(t); len(left) > 0 {
		t.Errorf("left behind: %q", left)
	}
	if b.log.count("No matching distribution found") == 0 {
		t.Error("the log does not say why")
	}
	wheel(t, b.wheels, "3.0", "3.0")
	if v := tinys(t, install(t, i, b.request("m", model(t, "requirements.txt", "tiny==3.0\n")))); v != "3.0" {
		t.Errorf("after the wheel has come: %s", v)
	}
}

func TestBadRequirementsFiles(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	i := b.installer(t, nil)
	for name, hint := range map[string]string{"absent.txt": "absent.txt that the manifest names is not in the archive", "../x": "is not in the archive"} {
		r := b.request("m", model(t))
		r.Requirements = name
		var f *fault.Error
		if _, err := i.Install(t.Context(), r); !errors.As(err, &f) || f.Kind != fault.DependencyFailed || !strings.Contains(f.Hint, hint) {
			t.Errorf("%s: %#v", name, err)
		}
	}
	r := b.request("m", model(t, "requirements.txt", "tiny\n"))
	r.Interpreter = filepath.Join(r.Dir, "python")
	var f *fault.Error
	if _, err := i.Install(t.Context(), r); !errors.As(err, &f) || !strings.Contains(f.Hint, "python") {
		t.Errorf("without an interpreter: %#v", err)
	}
}

func TestOff(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	i := b.installer(t, func(o *Options) { o.Requirements = false })
	r := b.request("m", model(t, "requirements.txt", "tiny==3.0\n"))
	env := install(t, i, r)
	if env.Interpreter != b.python || env.Packages != "" || env.Installed || len(b.left(t)) > 0 {
		t.Errorf("%+v, left %q", env, b.left(t))
	}
	if b.log.count("since install_py_dep_per_model is not true") != 1 {
		t.Error("the log does not name the switch")
	}
	r.Venv = true // as on TorchServe, this does not need the switch
	if env := install(t, i, r); env.Interpreter == b.python || env.Installed {
		t.Errorf("%+v", env)
	}
}

// TestModelsFilesDoNotDisturbPip has files in the model's folder that pip would import if it could.
func TestModelsFilesDoNotDisturbPip(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	const bad = "raise SystemExit('the model's own file was imported')"
	dir := model(t, "requirements.txt", "./wheels/tiny-1.0-py3-none-any.whl\n", "json.py", bad, "pip.py", bad, "venv.py", bad, "sitecustomize.py", bad, "wheels/x", "")
	wheel(t, filepath.Join(dir, "wheels"), "1.0", "from the archive")
	b.env = append(b.env, "PYTHONPATH=:")
	i := b.installer(t, nil)
	for _, venv := range []bool{false, true} {
		r := b.request("m", dir)
		r.Venv = venv
		if v := tinys(t, install(t, i, r)); v != "from the archive" {
			t.Errorf("virtual environment %v: %s", venv, v)
		}
	}
}

func TestWhatTheKeyDependsOn(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	i := b.installer(t, nil)
	keyOf := func(i *Installer, change func(*Request), files ...string) string {
		r := b.request("m", model(t, files...))
		if change != nil {
			change(&r)
		}
		key, err := i.key(t.Context(), r)
		if err != nil {
			t.Fatal(err)
		}
		return key
	}
	plain := keyOf(i, nil, "requirements.txt", "tiny\n")
	withEnv := func(entry string) *Installer {
		return b.installer(t, func(o *Options) { o.Env = append(slices.Clip(o.Env), entry) })
	}
	for name, same := range map[string]string{
		"the same text":      keyOf(i, nil, "requirements.txt", "tiny\n", "other.txt", "x"),
		"another model":      keyOf(i, func(r *Request) { r.Model.Name = "n" }, "requirements.txt", "tiny\n"),
		"how long pip waits": keyOf(withEnv("PIP_TIMEOUT=7"), nil, "requirements.txt", "tiny\n"),
		"other variables":    keyOf(withEnv("TINY=7"), nil, "requirements.txt", "tiny\n"),
	} {
		if same != plain {
			t.Errorf("%s makes another key", name)
		}
	}
	seen := map[string]string{plain: "plain"}
	for name, key := range map[string]string{
		"another text":        keyOf(i, nil, "requirements.txt", "tiny\n\n"),
		"virtual environment": keyOf(i, func(r *Request) { r.Venv = true }, "requirements.txt", "tiny\n"),
		"empty environment":   keyOf(i, func(r *Request) { r.Venv, r.Requirements = true, "" }),
		"another index":       keyOf(withEnv("PIP_INDEX_URL=http://other/"), nil, "requirements.txt", "tiny\n"),
		"nested 1":            keyOf(i, nil, "requirements.txt", "-r more/a.txt\n", "more/a.txt", "-c b.txt\n", "more/b.txt", "tiny==1.0"),
		"nested 2":            keyOf(i, nil, "requirements.txt", "-r more/a.txt\n", "more/a.txt", "-c b.txt\n", "more/b.txt", "tiny==2.0"),
		"wheel 1":             keyOf(i, nil, "requirements.txt", "./tiny.whl[all] # x\n", "tiny.whl", "1"),
		"wheel 2":             keyOf(i, nil, "requirements.txt", "./tiny.whl[all] # x\n", "tiny.whl", "2"),
		"folder 1":            keyOf(i, nil, "requirements.txt", "--find-links=w\n", "w/tiny.whl", "1"),
		"folder 2":            keyOf(i, nil, "requirements.txt", "--find-links=w\n", "w/tiny.whl", "2"),
		"link 1":              keyOf(i, nil, "requirements.txt", "-e p\n", "p/setup.py", "1"),
		"link 2":              keyOf(i, nil, "requirements.txt", "-e p\n", "p/setup.py", "1"),
		"variable 1":          keyOf(withEnv("TINY=1"), nil, "requirements.txt", "tiny==${TINY}\n"),
		"variable 2":          keyOf(withEnv("TINY=2"), nil, "requirements.txt", "tiny==${TINY}\n"),
	} {
		if other, taken := seen[key]; taken {
			t.Errorf("%s and %s have the same key", name, other)
		}
		seen[key] = name
	}
}

// silent is an index that takes connections and never says anything.
func silent(t *testing.T) string {
	t.Helper()
	var lc net.ListenConfig
	l, err := lc.Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	return "PIP_INDEX_URL=http://" + l.Addr().String() + "/simple"
}

func TestAnInstallationThatIsCutOff(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	env := append(slices.Clip(b.env), silent(t), "PIP_NO_INDEX=0", "PIP_RETRIES=50", "PIP_TIMEOUT=600", "FLAMBEAU_TEST_MARK="+b.cache)
	until := func(ask func() bool) {
		for tick := time.NewTicker(20 * time.Millisecond); !ask(); <-tick.C {
		}
	}
	for name, tc := range map[string]struct {
		limit time.Duration
		stop  func(i *Installer, cancel func())
		kind  fault.Kind
		hint  string
	}{
		"limit":  {3 * time.Second, nil, fault.DependencyFailed, "longer than dependency_timeout, 3s"},
		"cancel": {time.Minute, func(_ *Installer, cancel func()) { cancel() }, fault.Cancelled, ""},
		"close":  {time.Minute, func(i *Installer, _ func()) { i.Close() }, fault.Draining, ""},
	} {
		i := b.installer(t, func(o *Options) { o.Env, o.Limit = env, tc.limit })
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		before := b.log.count(installing)
		go func() {
			_, err := i.Install(ctx, b.request("m", model(t, "requirements.txt", "tiny==9.9\n")))
			done <- err
		}()
		if tc.stop != nil {
			until(func() bool { return b.log.count(installing) > before && len(marked(t, b.cache)) > 0 })
			tc.stop(i, cancel)
		}
		err := <-done
		cancel()
		var f *fault.Error
		if !errors.As(err, &f) || f.Kind != tc.kind || !strings.Contains(f.Hint, tc.hint) {
			t.Errorf("%s: %#v", name, err)
		}
		if pids := marked(t, b.cache); len(pids) > 0 {
			t.Errorf("%s: processes are left: %v", name, pids)
		}
		if left := b.left(t); len(left) > 0 {
			t.Errorf("%s: left behind: %q", name, left)
		}
	}
	i := b.installer(t, nil)
	i.Close()
	if _, err := i.Install(t.Context(), b.request("m", model(t, "requirements.txt", "tiny==1.0\n"))); !fault.Is(err, fault.Draining) {
		t.Errorf("after Close: %v", err)
	}
}

// marked lists the processes that have the mark in their environment.
func marked(t *testing.T, mark string) []string {
	t.Helper()
	files, err := filepath.Glob("/proc/[0-9]*/environ")
	if err != nil {
		t.Fatal(err)
	}
	var found []string
	for _, file := range files {
		if text, err := os.ReadFile(file); err == nil && bytes.Contains(text, []byte("FLAMBEAU_TEST_MARK="+mark)) {
			found = append(found, file)
		}
	}
	return found
}

func TestUnusedEntriesAreRemoved(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	i := b.installer(t, nil)
	old := time.Now().Add(-unusedFor - time.Hour)
	age := func(e *Environment) {
		if err := os.Chtimes(filepath.Dir(e.Packages)+lockSuffix, old, old); err != nil {
			t.Fatal(err)
		}
	}
	unused := install(t, i, b.request("unused", model(t, "requirements.txt", "tiny==1.0\n")))
	used := install(t, i, b.request("used", model(t, "requirements.txt", "tiny==2.0\n")))
	unused.Release()
	unused.Release() // more than once
	age(unused)
	age(used)
	half := filepath.Join(b.cache, layout, "half")
	if err := errors.Join(os.MkdirAll(half+partSuffix, 0o700), os.WriteFile(half+lockSuffix, nil, 0o600)); err != nil {
		t.Fatal(err)
	}
	install(t, i, b.request("new", model(t, "requirements.txt", "tiny>=1\n")))
	for path, want := range map[string]bool{unused.Packages: false, filepath.Dir(unused.Packages) + lockSuffix: false, used.Packages: true, half + partSuffix: false} {
		if _, err := os.Stat(path); (err == nil) != want {
			t.Errorf("%s: %v", path, err)
		}
	}
}

func TestFolders(t *testing.T) {
	t.Parallel()
	good, open, file := t.TempDir(), t.TempDir(), filepath.Join(t.TempDir(), "file")
	if err := errors.Join(os.Mkdir(filepath.Join(open, layout), 0o700), os.Chmod(filepath.Join(open, layout), 0o777), os.WriteFile(file, nil, 0o600)); err != nil {
		t.Fatal(err)
	}
	s, err := openStore([]string{open, file, good})
	if err != nil || s.dir != filepath.Join(good, layout) {
		t.Errorf("%v, %v", s, err)
	}
	if _, err := openStore([]string{open, file}); err == nil || !strings.Contains(err.Error(), "others may write to it") || !strings.Contains(err.Error(), "dependency_cache") {
		t.Error(err)
	}
}

// TestLockOfARemovedEntry makes sure that nobody holds a lock on a file that is not there any more.
func TestLockOfARemovedEntry(t *testing.T) {
	t.Parallel()
	s := store{t.TempDir()}
	first, err := s.lock("k", syscall.LOCK_EX)
	if err != nil || first == nil {
		t.Fatal(first, err)
	}
	if other, err := s.lock("k", syscall.LOCK_SH); other != nil || err != nil {
		t.Errorf("locked twice: %v, %v", other, err)
	}
	if err := os.Remove(s.path("k" + lockSuffix)); err != nil {
		t.Fatal(err)
	}
	second, err := s.lock("k", syscall.LOCK_EX)
	if err != nil || second == nil {
		t.Fatal(second, err)
	}
	first.release()
	if other, err := s.lock("k", syscall.LOCK_SH); other != nil || err != nil {
		t.Errorf("locked twice: %v, %v", other, err)
	}
	second.release()
}
