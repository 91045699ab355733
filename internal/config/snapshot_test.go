package config

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

const snapshotText = `#Saving snapshot
disable_token_authorization=true
enable_model_api=true
archive_private_networks=10.0.0.0/8
python=/their/python
inference_address=http\://127.0.0.1\:18080
allowed_urls=https\://mine/.*
enable_envvars_config=true
use_env_allowed_urls=true
load_models=old.mar
model_store=/srv/store
model_snapshot={\n  "name"\: "x",\n  "modelCount"\: 1,\n  "models"\: {"m"\: {"1.0"\: {"defaultVersion"\: true, "marName"\: "m.mar", "minWorkers"\: 1, "maxWorkers"\: 2}}}}
`

func put(t *testing.T, dir, name, text string) string {
	t.Helper()
	path := filepath.Join(dir, name)
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

func restore(t *testing.T, src Source) *Config {
	t.Helper()
	c, err := Load(src)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// TestWhichFileWithSnapshots: TS_CONFIG_FILE, --ts-config, the snapshot, ./config.properties, in TorchServe's order.
func TestWhichFileWithSnapshots(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	snapshot := SnapshotFile{Path: put(t, dir, "snap.cfg", snapshotText), Notes: []string{"a note"}}
	variable, flag, local := put(t, dir, "v", ""), put(t, dir, "f", ""), put(t, dir, DefaultFile, "")
	empty := t.TempDir()
	tests := []struct {
		name     string
		src      Source
		want     string
		restored bool
	}{
		{"variable", Source{Environ: []string{"TS_CONFIG_FILE=" + variable}, File: flag, Snapshot: snapshot, Dir: dir}, variable, false},
		{"flag", Source{File: flag, Snapshot: snapshot, Dir: dir}, flag, false},
		{"snapshot", Source{Snapshot: snapshot, Dir: dir}, snapshot.Path, true},
		{"local", Source{Dir: dir}, local, false},
		{"none", Source{Dir: empty}, "", false},
		{"the snapshot is named", Source{File: snapshot.Path, Snapshot: snapshot, Dir: dir}, snapshot.Path, false},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			if got := FindFile(tt.src); got != tt.want {
				t.Errorf("FindFile gives %s, want %s", got, tt.want)
			}
			c := restore(t, tt.src)
			if c.File != tt.want || (c.RestoredFrom != "") != tt.restored || (c.Snapshot != nil) != (tt.want == snapshot.Path) {
				t.Errorf("read %q, restored %q, snapshot %v", c.File, c.RestoredFrom, c.Snapshot)
			}
			if slices.Contains(c.Warnings(), "a note") != tt.restored {
				t.Errorf("warnings: %q", c.Warnings())
			}
		})
	}
}

// TestNothingOpens: a switch that takes a protection away is not restored, limits and addresses are, and the user is told what is not.
func TestNothingOpens(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	file := put(t, dir, "snap.cfg", snapshotText)
	c := restore(t, Source{Snapshot: SnapshotFile{Path: file, Foreign: true}, Dir: dir, Environ: []string{"TS_JOB_QUEUE_SIZE=7"}})
	if !c.TokenAuth || c.ModelAPI || c.PrivateNetworks != nil || c.Python != "" {
		t.Errorf("restored: token %v, model API %v, networks %v, python %q", c.TokenAuth, c.ModelAPI, c.PrivateNetworks, c.Python)
	}
	if c.Inference.Port != 18080 || !slices.Equal(c.AllowedURLs, []string{"https://mine/.*"}) || c.ModelStore != "/srv/store" || c.QueueSize != 7 {
		t.Errorf("not restored: %v, %q, %s, %d", c.Inference, c.AllowedURLs, c.ModelStore, c.QueueSize)
	}
	want := []string{
		file + ", line 2: disable_token_authorization=true is not restored from a snapshot, since it takes a protection away; to have it, give --disable-token-auth, or a configuration file (--ts-config)",
		file + ", line 3: enable_model_api=true is not restored from a snapshot, since it takes a protection away; to have it, give --enable-model-api, or a configuration file (--ts-config)",
		file + ", line 4: archive_private_networks=10.0.0.0/8 is not restored from a snapshot, since it takes a protection away; to have it, give a configuration file (--ts-config)",
	}
	if diff := cmp.Diff(want, c.Warnings()); diff != "" {
		t.Error(diff)
	}

	// What is given for this start counts, and is not warned of.
	c = restore(t, Source{
		Snapshot: SnapshotFile{Path: file}, Dir: dir, Environ: []string{"TS_DISABLE_TOKEN_AUTHORIZATION=true", "TS_ALLOWED_URLS=https://new/.*"},
		Flags: map[string]string{"enable_model_api": "true"},
	})
	if c.TokenAuth || !c.ModelAPI || !slices.Equal(c.AllowedURLs, []string{"https://new/.*"}) || c.Python != "/their/python" {
		t.Errorf("given: token %v, model API %v, %q, python %q", c.TokenAuth, c.ModelAPI, c.AllowedURLs, c.Python)
	}
	if len(c.Warnings()) != 1 {
		t.Errorf("%q", c.Warnings())
	}

	// Named by the user it is a configuration file.
	c = restore(t, Source{File: file, Dir: dir})
	if c.TokenAuth || !c.ModelAPI || len(c.PrivateNetworks) != 1 || len(c.Warnings()) > 0 {
		t.Errorf("named: token %v, model API %v, networks %v, %q", c.TokenAuth, c.ModelAPI, c.PrivateNetworks, c.Warnings())
	}

	// Our own snapshots only name them.
	own := put(t, dir, "own.cfg", "flambeau_not_restored=enable_model_api\\=true;disable_token_authorization=false;model_store=/x;;nope\nmodel_snapshot={}\n")
	c = restore(t, Source{Snapshot: SnapshotFile{Path: own}, Dir: dir})
	if !c.TokenAuth || c.ModelAPI || c.ModelStore != "" || len(c.Warnings()) != 1 || !strings.Contains(c.Warnings()[0], "line 1: enable_model_api=true is not restored") {
		t.Errorf("our own: token %v, model API %v, store %q, %q", c.TokenAuth, c.ModelAPI, c.ModelStore, c.Warnings())
	}
	if c = restore(t, Source{File: own, Dir: dir}); !c.TokenAuth || c.ModelAPI || len(c.Warnings()) > 0 {
		t.Errorf("our own, named: token %v, model API %v, %q", c.TokenAuth, c.ModelAPI, c.Warnings())
	}

	// Switches that were off are not worth a word.
	quiet := put(t, dir, "quiet.cfg", strings.NewReplacer("=true", "=false", "=10.0.0.0/8", "=").Replace(snapshotText))
	if c = restore(t, Source{Snapshot: SnapshotFile{Path: quiet}, Dir: dir}); len(c.Warnings()) > 0 {
		t.Errorf("%q", c.Warnings())
	}
}

// TestBesideSnapshot: models of the command line and ./config.properties have no effect beside a snapshot, as for TorchServe, and the user is told.
func TestBesideSnapshot(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	file := put(t, t.TempDir(), "snap.cfg", strings.ReplaceAll(snapshotText, "=true", "=false"))
	local := put(t, dir, DefaultFile, "job_queue_size=3\n")
	models := map[string]string{"load_models": "new.mar"}
	tests := []struct {
		name string
		src  Source
		want []string
	}{
		{"nothing", Source{Snapshot: SnapshotFile{Path: file}, Dir: t.TempDir()}, nil},
		{"all models", Source{Snapshot: SnapshotFile{Path: file}, Dir: t.TempDir(), Flags: map[string]string{"load_models": "all"}}, []string{
			"--models: the models of the snapshot " + file + " are restored as they were, and after them all that the model store holds besides is loaded",
		}},
		{"models", Source{Snapshot: SnapshotFile{Path: file}, Dir: t.TempDir(), Flags: models}, []string{"--models has no effect: the models of the snapshot " + file + " are restored"}},
		{"models with a named file", Source{File: file, Flags: models}, []string{"take model_snapshot out of " + file}},
		{"local file", Source{Snapshot: SnapshotFile{Path: file}, Dir: dir}, []string{DefaultFile + " is not read but for its switches that take a protection away: the snapshot " + file}},
		{"models without a snapshot", Source{File: local, Flags: models}, nil},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			got := slices.DeleteFunc(restore(t, tt.src).Warnings(), func(w string) bool { return strings.Contains(w, "archive_private_networks") })
			if len(got) != len(tt.want) {
				t.Fatalf("%q, want %q", got, tt.want)
			}
			for i := range got {
				if !strings.Contains(got[i], tt.want[i]) {
					t.Errorf("%q, want %q", got[i], tt.want[i])
				}
			}
		})
	}
}

func TestSnapshotSettings(t *testing.T) {
	t.Parallel()
	file := put(t, t.TempDir(), "a.properties", `
inference_address=http://127.0.0.1:9
keystore=/k
keystore_pass=$$SECRET$$
default_service_handler=$$NAME$$
disable_token_authorization=true
archive_private_networks=10.0.0.0/8
enable_envvars_config=true
model_store=store
model_snapshot={"models": {}}
version=0.12.0
tsConfigFile=x
unknown=1
`)
	c := restore(t, Source{
		File: file, Environ: []string{"SECRET=geheim", "NAME=h:f", "TS_JOB_QUEUE_SIZE=9"},
		Flags: map[string]string{"enable_model_api": "true", "load_models": "a.mar,b.mar"},
	})
	store, err := filepath.Abs("store")
	if err != nil {
		t.Fatal(err)
	}
	want := []Setting{
		{"inference_address", "http://127.0.0.1:9"},
		{"keystore", "/k"},
		{"keystore_pass", "$$SECRET$$"},
		{"model_store", store},
		{"load_models", "a.mar,b.mar"},
		{"default_service_handler", "h:f"},
		{"job_queue_size", "9"},
		{"enable_envvars_config", "true"},
		{"flambeau_not_restored", "archive_private_networks=10.0.0.0/8;enable_model_api=true;disable_token_authorization=true"},
		{"tsConfigFile", file},
	}
	if diff := cmp.Diff(want, c.SnapshotSettings()); diff != "" {
		t.Error(diff)
	}
}

func TestCheckSnapshot(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		snapshotText:               "",
		"":                         "no model_snapshot",
		"a=b\n":                    "no model_snapshot",
		`model_snapshot={"models"`: "not JSON",
		`model_snapshot={"models": {"m": {"1": {}}}}`: "marName",
		`a=\u00`: "line 1",
	} {
		err := CheckSnapshot([]byte(text))
		if (err == nil) != (want == "") || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, want %q", text, err, want)
		}
	}
}

// FuzzSnapshot: a snapshot that is taken can be loaded, whatever else is in it, or its values are refused by name; and it opens nothing.
func FuzzSnapshot(f *testing.F) {
	f.Add([]byte(snapshotText))
	f.Add([]byte(snapshotText[:len(snapshotText)/2]))
	f.Add([]byte("model_snapshot={\"models\"\\: {\"m\"\\: {\"1\"\\: {\"marName\"\\: 5, \"minWorkers\"\\: \"2\"}}}}\ndisable_token_authorization TRUE\nDISABLE=1"))
	f.Add([]byte("disable_token_authorization=false\ndisable_token_authorization=true\nmodel_snapshot={}\n"))
	f.Fuzz(func(t *testing.T, data []byte) {
		if CheckSnapshot(data) != nil {
			return
		}
		dir := t.TempDir()
		file := put(t, dir, "snap.cfg", string(data))
		c, err := Load(Source{Snapshot: SnapshotFile{Path: file}, Dir: dir})
		if err != nil {
			if !strings.Contains(err.Error(), file) {
				t.Errorf("%v does not name the file", err)
			}
			return
		}
		if !c.TokenAuth || c.ModelAPI || c.PrivateNetworks != nil {
			t.Errorf("it opens something: %q", data)
		}
	})
}

// TestSwitchesOfTheLocalFile: what is not restored from a snapshot is taken from ./config.properties, and nothing else is.
func TestSwitchesOfTheLocalFile(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	snapshot := SnapshotFile{Path: put(t, dir, "snap.cfg", snapshotText)}
	local := put(t, dir, DefaultFile, "disable_token_authorization=true\ninference_address=http://127.0.0.1:9999\n")
	c := restore(t, Source{Snapshot: snapshot, Dir: dir})
	if c.TokenAuth || c.ModelAPI || c.Inference.Port != 18080 {
		t.Errorf("token authorization %t, model API %t, port %d", c.TokenAuth, c.ModelAPI, c.Inference.Port)
	}
	if v := c.Value("disable_token_authorization"); v.Origin.Name != local || v.Origin.Line != 1 {
		t.Errorf("its origin is %+v", v.Origin)
	}
}
