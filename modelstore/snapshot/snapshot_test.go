package snapshot

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"

	"github.com/flambeau-serve/flambeau/internal/reexec"
)

func TestMain(m *testing.M) {
	reexec.Main(map[reexec.Mode]func(){writerMode: runWriter})
	goleak.VerifyTestMain(m)
}

var moment = time.Date(2026, 11, 29, 20, 21, 0, 564e6, time.UTC)

func models(n int) []Model {
	var all []Model
	for i := range n {
		all = append(all, Model{
			Name: fmt.Sprint("m", i), Version: "1.0", Default: true, File: "m.mar", MinWorkers: 1, MaxWorkers: 2, BatchSize: 4, MaxBatchDelay: 50 * time.Millisecond,
			ResponseTimeout: 120 * time.Second, StartupTimeout: 1500 * time.Millisecond, Runtime: "python",
		})
	}
	return all
}

// hasAll takes what has as many models as it says.
func hasAll(data []byte) error {
	_, err := count(data)
	return err
}

// count gives the number of models of a file of ours.
func count(data []byte) (int, error) {
	for line := range strings.Lines(string(data)) {
		text, found := strings.CutPrefix(line, "model_snapshot=")
		if !found {
			continue
		}
		text = strings.NewReplacer(`\n`, "\n", `\:`, ":", `\=`, "=").Replace(text)
		var s wireSnapshot
		if err := json.Unmarshal([]byte(text), &s); err != nil {
			return 0, err
		}
		if len(s.Models) != s.Count {
			return 0, fmt.Errorf("%d models of %d", len(s.Models), s.Count)
		}
		return s.Count, nil
	}
	return 0, errors.New("no models")
}

// TestAsTorchServe: for the same settings and models the lines are those of a file that TorchServe 0.12.0 has written, but for what is not ASCII, which it
// cannot read back itself.
func TestAsTorchServe(t *testing.T) {
	t.Parallel()
	theirs, err := os.ReadFile("testdata/torchserve-0.12.0.cfg")
	if err != nil {
		t.Fatal(err)
	}
	alpha := Model{
		Name: "alpha", Version: "1.0", Default: true, File: "alpha.mar", MinWorkers: 1, MaxWorkers: 2, BatchSize: 4, MaxBatchDelay: 50 * time.Millisecond,
		ResponseTimeout: 120 * time.Second, StartupTimeout: 120 * time.Second, Runtime: "python",
	}
	beta1 := alpha
	beta1.Name, beta1.Default, beta1.File, beta1.MinWorkers, beta1.MaxWorkers, beta1.BatchSize = "beta", false, "beta.mar", 2, 3, 5
	beta1.MaxBatchDelay, beta1.ResponseTimeout = 100*time.Millisecond, 33*time.Second
	beta2 := beta1
	beta2.Version, beta2.Default, beta2.File, beta2.MinWorkers, beta2.MaxWorkers, beta2.BatchSize = "2.0", true, "beta2.mar", 0, 0, 1
	ours, err := encode("20261129202111693-snapshot.cfg", time.UnixMilli(1795983671693), []Setting{
		{"allowed_urls", "https://s3.amazonaws.com/.*,file:///tmp/.*"},
		{"inference_address", "http://127.0.0.1:18080"},
		{"cors_allowed_origin", "*"},
		{"models", `{"beta": {"1.0": {"minWorkers": 1, "maxWorkers": 1, "batchSize": 3}}}`},
		{"my_own_key", "schön = gut: ja"},
	}, []Model{alpha, beta1, beta2})
	if err != nil {
		t.Fatal(err)
	}
	theirLines := strings.Split(string(theirs), "\n")
	for line := range strings.Lines(string(ours)) {
		line = strings.TrimSuffix(line, "\n")
		if strings.HasPrefix(line, "#") {
			continue
		}
		line = strings.ReplaceAll(line, `\u00F6`, "ö")
		if !slices.Contains(theirLines, line) {
			t.Errorf("TorchServe has no line\n%s", line)
		}
	}
	if isOwn(theirs) || !complete(theirs) || complete(theirs[:len(theirs)-1]) {
		t.Error("TorchServe's file is not taken for one")
	}
}

func TestEscape(t *testing.T) {
	t.Parallel()
	for in, want := range map[string]string{
		"my own key": "my own key", "  a b": `\  a b`, "é😀": `\u00E9\uD83D\uDE00`, "#a!\\b\tc\r\f\n=:\x00\x7f": `\#a\!\\b\tc\r\f\n\=\:\u0000\u007F`, "": "",
	} {
		if got := escape(in, false); got != want {
			t.Errorf("%q: %s, want %s", in, got, want)
		}
	}
	if got := escape(" a b", true); got != `\ a\ b` {
		t.Error(got)
	}
	text, err := encode("x", moment, nil, []Model{{Name: "p", Version: "1", ParallelLevel: 2}})
	if err != nil || !strings.Contains(string(text), `"parallelLevel"\: 2`) {
		t.Errorf("%s, %v", text, err)
	}
}

func TestWriteAndFind(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "logs", "config")
	if found, err := Find(dir, hasAll); err != nil || found.Path != "" {
		t.Errorf("%+v, %v", found, err)
	}
	w, err := NewWriter(Options{Dir: dir})
	if err != nil {
		t.Fatal(err)
	}
	first, err := w.Write(Startup, moment, []Setting{{"a", "1"}}, models(1))
	if err != nil || filepath.Base(first) != "20261129202100564-startup.cfg" {
		t.Fatalf("%s, %v", first, err)
	}
	info, err := os.Stat(first)
	if err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("a file that may hold a password has the mode %v, %v", info.Mode(), err)
	}
	// The clock stands still, and then goes back: names grow all the same.
	for i, at := range []time.Time{moment, moment.Add(-time.Hour)} {
		path, err := w.Write(Changed, at, nil, models(i+2))
		if want := fmt.Sprintf("2026112920210056%d-snapshot.cfg", 5+i); err != nil || filepath.Base(path) != want {
			t.Errorf("%s, want %s, %v", path, want, err)
		}
	}
	last, err := w.Write(Shutdown, moment.Add(time.Hour), nil, models(4))
	if err != nil || filepath.Base(last) != "20261129212100564-shutdown.cfg" {
		t.Errorf("%s, %v", last, err)
	}
	found, err := Find(dir, hasAll)
	if diff := cmp.Diff(Found{Path: last, Own: true}, found); diff != "" || err != nil {
		t.Error(diff, err)
	}
	entries, err := os.ReadDir(filepath.Dir(dir))
	if err != nil || len(entries) != 1 {
		t.Errorf("left beside the folder: %v, %v", entries, err)
	}
}

func TestIncrement(t *testing.T) {
	t.Parallel()
	for in, want := range map[string]string{
		"20261129202100564": "20261129202100565", "20261129202159999": "20261129202160000", "09": "10", "99": "99",
	} {
		if got := increment(in); in != "99" && got != want {
			t.Errorf("%s, want %s", got, want)
		}
	}
}

// TestPruned: the newest of our own are kept, and TorchServe's and strange files stay.
func TestPruned(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	others := []string{"20200101000000000-startup.cfg", "20990101000000000-startup.cfg", "stray.txt", "notes-startup.cfg"}
	for _, name := range others {
		write(t, filepath.Join(dir, name), "#Saving snapshot\n")
	}
	w, err := NewWriter(Options{Dir: dir, Keep: 3})
	if err != nil {
		t.Fatal(err)
	}
	var want []string
	for i := range 10 {
		path, err := w.Write(Changed, moment.Add(time.Duration(i)*time.Second), nil, models(1))
		if err != nil {
			t.Fatal(err)
		}
		want = append(want, filepath.Base(path))
	}
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	if len(entries) != len(others)+3 {
		t.Errorf("%v", entries)
	}
	for _, name := range append(others, want[7:]...) {
		if _, err := os.Stat(filepath.Join(dir, name)); err != nil {
			t.Error(err)
		}
	}
}

func write(t *testing.T, path, text string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

// TestStrayFiles: what is newer and no whole snapshot is passed over, and told if its name is one's.
func TestStrayFiles(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	w, err := NewWriter(Options{Dir: dir})
	if err != nil {
		t.Fatal(err)
	}
	good, err := w.Write(Startup, moment, nil, models(2))
	if err != nil {
		t.Fatal(err)
	}
	write(t, filepath.Join(dir, "zzz"), "")
	write(t, filepath.Join(dir, "2099-startup.cfg"), "")
	write(t, filepath.Join(dir, "20990101000000001-other.cfg"), "")
	write(t, filepath.Join(dir, "20990101000000002-startup.cfg"), "")
	write(t, filepath.Join(dir, "20990101000000003-startup.cfg"), "a=b\nc=d")
	write(t, filepath.Join(dir, "20990101000000004-snapshot.cfg"), "a=b\n")
	if err := os.Mkdir(filepath.Join(dir, "20990101000000005-snapshot.cfg"), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink("/nope", filepath.Join(dir, "20990101000000006-snapshot.cfg")); err != nil {
		t.Fatal(err)
	}
	found, err := Find(dir, hasAll)
	if err != nil || found.Path != good {
		t.Errorf("%+v, %v", found, err)
	}
	var reasons []string
	for _, s := range found.Skipped {
		reasons = append(reasons, filepath.Base(s.Path)[16:17]+" "+s.Reason)
	}
	want := []string{"5 it is not a file", "4 no models", "3 its end is missing", "2 its end is missing"}
	if len(reasons) != 5 || !strings.Contains(reasons[0], "no such file") {
		t.Fatalf("%q", reasons)
	}
	if diff := cmp.Diff(want, reasons[1:]); diff != "" {
		t.Error(diff)
	}
	if _, err := Find(good, hasAll); err == nil {
		t.Error("a file in the folder's place: no error")
	}
}

// TestTruncated: a file of ours that was cut at any byte is not taken, and an older one is.
func TestTruncated(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	w, err := NewWriter(Options{Dir: dir})
	if err != nil {
		t.Fatal(err)
	}
	older, err := w.Write(Startup, moment, nil, models(1))
	if err != nil {
		t.Fatal(err)
	}
	newer, err := w.Write(Changed, moment, []Setting{{"metrics_address", "http://127.0.0.1:8082"}}, models(2))
	if err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(newer)
	if err != nil {
		t.Fatal(err)
	}
	for cut := len(text) - 2; cut >= 0; cut-- {
		if err := os.Truncate(newer, int64(cut)); err != nil {
			t.Fatal(err)
		}
		found, err := Find(dir, func([]byte) error { return nil }) // its end alone has to tell
		if err != nil || found.Path != older || len(found.Skipped) != 1 {
			t.Fatalf("cut at %d: %+v, %v", cut, found, err)
		}
	}
}

const writerMode reexec.Mode = "snapshot-writer"

// runWriter writes snapshots as fast as it can, and says how many models the last one has, until it is killed.
func runWriter() {
	w, err := NewWriter(Options{Dir: os.Args[1], Keep: 5})
	if err != nil {
		panic(err)
	}
	for i := 1; ; i++ {
		if _, err := w.Write(Changed, time.Now(), []Setting{{"a", strings.Repeat("x", 1<<20)}}, models(i%50)); err != nil {
			panic(err)
		}
		fmt.Println(i % 50)
	}
}

// TestKilled kills a writer at random moments: the newest file is whole, and has at least what the writer had said to be written.
func TestKilled(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("starts processes")
	}
	dir := filepath.Join(t.TempDir(), "config")
	for round := range 15 {
		said := killWriter(t, dir, time.Duration(rand.IntN(100_000))*time.Microsecond) //nolint:gosec // any moment will do
		var got int
		found, err := Find(dir, func(data []byte) (err error) {
			got, err = count(data)
			return err
		})
		if err != nil || found.Path == "" || len(found.Skipped) > 0 {
			t.Fatalf("round %d: %+v, %v", round, found, err)
		}
		if got != said && got != (said+1)%50 {
			t.Fatalf("round %d: the newest has %d models, and the last one was said to have %d", round, got, said)
		}
		entries, err := os.ReadDir(dir)
		if err != nil || len(entries) > 6 {
			t.Fatalf("round %d: %v, %v", round, entries, err)
		}
		for _, entry := range entries {
			if !names.MatchString(entry.Name()) {
				t.Errorf("TorchServe would stumble over %s", entry.Name())
			}
		}
	}
}

func killWriter(t *testing.T, dir string, after time.Duration) (said int) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), os.Args[0], dir) //nolint:gosec // this test
	cmd.Env = append(os.Environ(), reexec.Env(writerMode), "GORACE=atexit_sleep_ms=0")
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	reader := bufio.NewScanner(out)
	var timer *time.Timer
	for reader.Scan() {
		if timer == nil { // from its first snapshot on
			timer = time.AfterFunc(after, func() { _ = cmd.Process.Kill() })
		}
		if _, err := fmt.Sscan(reader.Text(), &said); err != nil {
			t.Fatalf("%q", reader.Text())
		}
	}
	if err := cmd.Wait(); timer == nil {
		t.Fatalf("the writer: %v\n%s", err, &stderr)
	}
	return said
}

// TestScratchOnAnotherDisk: where the folder beside is of no use, the file grows in the folder itself.
func TestScratchOnAnotherDisk(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	w, err := NewWriter(Options{Dir: dir})
	if err != nil {
		t.Fatal(err)
	}
	shm, err := os.MkdirTemp("/dev/shm", "fl-snapshot-") //nolint:usetesting // another file system
	if err != nil {
		t.Skip("there is no other file system: ", err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(shm) })
	w.dir = filepath.Join(shm, "config")
	if err := os.Symlink(dir, w.dir); err != nil {
		t.Fatal(err)
	}
	path, err := w.Write(Startup, moment, nil, models(1))
	if err != nil {
		t.Fatal(err)
	}
	if found, err := Find(dir, hasAll); err != nil || filepath.Base(found.Path) != filepath.Base(path) {
		t.Errorf("%+v, %v", found, err)
	}
}

func FuzzFind(f *testing.F) {
	text, err := encode("x", moment, []Setting{{"a", "b"}}, models(2))
	if err != nil {
		f.Fatal(err)
	}
	f.Add("20990101000000003-startup.cfg", text)
	f.Add("20990101000000003-startup.cfg", text[:len(text)-3])
	f.Add("20990101000000003-startup.cfg", []byte("#Saving snapshot\na=b\n"))
	f.Add(".hidden", []byte{0xff})
	f.Fuzz(func(t *testing.T, name string, data []byte) {
		dir := t.TempDir()
		w, err := NewWriter(Options{Dir: dir})
		if err != nil {
			t.Fatal(err)
		}
		good, err := w.Write(Startup, moment, nil, models(1))
		if err != nil {
			t.Fatal(err)
		}
		path := filepath.Join(dir, filepath.Base(name))
		if filepath.Dir(path) != dir || path == good || os.WriteFile(path, data, 0o600) != nil {
			t.Skip()
		}
		found, err := Find(dir, hasAll)
		if err != nil || found.Path == "" {
			t.Fatalf("%+v, %v", found, err)
		}
		if found.Path != good {
			if err := hasAll(data); err != nil || found.Path != path {
				t.Errorf("%+v: %v", found, err)
			}
		}
		if next, err := w.Write(Changed, moment, nil, models(1)); err != nil {
			t.Errorf("%s: %v", next, err)
		}
	})
}

func FuzzEncode(f *testing.F) {
	f.Add("key", "value", "name", "1.0", "m.mar")
	f.Add("a b=c:d", "  é😀\\\n\r\t\f#!", "n\xff\"", "\u2028", "\x00")
	f.Fuzz(func(t *testing.T, key, value, name, version, file string) {
		text, err := encode("x", moment, []Setting{{key, value}}, []Model{{Name: name, Version: version, File: file}})
		if err != nil {
			t.Fatal(err)
		}
		if !complete(text) || bytes.Count(text, []byte("\n")) != 5 {
			t.Errorf("%q", text)
		}
		for _, b := range text {
			if b > '~' || b < ' ' && b != '\n' {
				t.Errorf("%q is not ASCII", text)
			}
		}
	})
}
