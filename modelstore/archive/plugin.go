package archive

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
)

// RuntimePlugin is the runtime of models that are a program of their own, written with handlersdk or after docs/protocol.md.
const RuntimePlugin = "plugin"

// ownPrograms is the folder, beside the link to a folder that is used in place, with the server's copy of its plugin.
const ownPrograms = ".plugin"

// readPlugin makes a plugin of a folder that holds one: the program that its configuration file names, or the one that is called as the model. It says
// whether it did. Under a manifest only the configuration file, or the manifest's runtime, can say so.
func (a *Archive) readPlugin(limits Limits, logger *slog.Logger) (bool, error) {
	config := a.Manifest.Model.ConfigFile
	if !a.HasManifest {
		if config = ""; isFile(filepath.Join(a.Dir, configName)) {
			config = configName
		}
	}
	name := a.layout.name
	if a.HasManifest && a.Manifest.Runtime != RuntimePlugin {
		name = ""
	}
	if path := filepath.Join(a.Dir, name); !looksExecutable(path) && (!a.HasManifest || !isFile(path)) { // under a manifest it is meant to be one, and refused below
		name = ""
	}
	if name == "" && !namesPlugin(filepath.Join(a.Dir, config), limits.MetadataBytes) {
		return false, nil
	}
	if !a.HasManifest {
		a.Manifest.Model = ManifestModel{ModelName: a.layout.name, ModelVersion: a.layout.version, ConfigFile: config}
	}
	a.Manifest.Runtime = RuntimePlugin
	settings, err := a.readSettings(limits, logger)
	if err != nil {
		return true, err
	}
	if a.Settings = settings; settings.Plugin != "" {
		name = settings.Plugin
	}
	if name == "" {
		return true, refuse("name the program: plugin: NAME", "the key plugin of %s has no program's name", config)
	}
	return true, a.program(name)
}

// readBroken refuses a folder without a manifest whose file with the model's name may be executed, as a plugin's program may, and is none: the model would else
// become another one, or be told to lack a handler. A folder of Python code may have such a file among its own, if it has no other model.
func (a *Archive) readBroken() error {
	name := a.layout.name
	path := filepath.Join(a.Dir, name)
	if !mayBeRun(path) {
		return nil
	}
	shown := filepath.ToSlash(filepath.Join(a.layout.name, a.layout.version, name))
	kind, head, size, err := programHead(path)
	why, hint := "", "give the server's user the right to read it"
	switch {
	case err != nil:
		why = fmt.Sprintf("%s, which is called as the model and may be executed, cannot be read: %v", shown, err)
	case kind != "":
		return nil // it has just become one
	default:
		why, hint = notProgram(head, size)
		why = shown + " is no program that this machine can run: " + why
	}
	if !isFile(filepath.Join(a.Dir, onnxName)) && holdsCode(a.Dir) {
		a.NotProgram = why
		return nil
	}
	return refuse(hint+"; if it is not meant to be the model's program, take away the right to execute it (`chmod -x "+name+"`) or give it another name", "%s", why)
}

// mostLooked bounds how many files are looked at for Python code.
const mostLooked = 10_000

// holdsCode says whether there may be a handler in Python in a folder: a file of code, at any depth. It says so, too, of a folder that cannot be looked through.
func holdsCode(dir string) bool {
	dir, err := filepath.EvalSymlinks(dir)
	if err != nil {
		return true
	}
	looked := 0
	found := errors.New("found")
	err = filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if looked++; err != nil || looked > mostLooked {
			return found
		}
		switch name := d.Name(); filepath.Ext(name) {
		case ".py", ".pyc":
			return found
		case ".so":
			if strings.Contains(name, ".cpython-") || strings.HasSuffix(name, ".abi3.so") {
				return found
			}
		}
		if d.Type()&fs.ModeSymlink == 0 {
			return nil
		}
		if info, err := os.Stat(path); err == nil && info.IsDir() {
			return found // somewhere else, which may be large
		}
		return nil
	})
	return err != nil
}

// namesPlugin says whether a configuration file has the key plugin. A file that cannot be read has not.
func namesPlugin(path string, limit int64) bool {
	return namesKey(path, "plugin", limit)
}

// program finds the plugin's program and notes what is to be started.
func (a *Archive) program(name string) error {
	if !filepath.IsLocal(filepath.FromSlash(name)) {
		return refuse("write its path below the model's folder", "the plugin's program %q is not in the model's folder", name)
	}
	path := filepath.Join(a.Dir, filepath.FromSlash(name))
	info, err := os.Stat(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return refuse("copy the program there, or correct the key plugin of "+configName, "the plugin's program %s is not there", name)
	case err != nil:
		return err
	case !info.Mode().IsRegular():
		return refuse("", "the plugin's program %s is not a file", name)
	case info.Mode()&0o111 == 0:
		return refuse("run `chmod +x "+filepath.Base(name)+"` where the archive is made, or in the store", "the plugin's program %s may not be executed", name)
	}
	kind, err := checkProgram(path, name)
	if err != nil {
		return err
	}
	a.Plugin, a.Program = filepath.FromSlash(name), path
	if !a.InPlace || kind != kindELF { // a script is read when it starts, and may look for its neighbours by its own path
		return nil
	}
	return a.ownCopy(info)
}

// ownCopy makes the server run a copy of a program in a folder of the operator: the kernel lets nobody write to a program that runs.
func (a *Archive) ownCopy(before fs.FileInfo) error {
	folder := filepath.Join(a.folder.root, ownPrograms)
	if err := os.Mkdir(folder, 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}
	own := filepath.Join(folder, filepath.Base(a.Plugin))
	if err := copyProgram(a.Program, own); err != nil {
		return a.store.asSpace(folder, before.Size(), fmt.Errorf("the copy of the plugin's program %s: %w", a.Plugin, err))
	}
	after, err := os.Stat(a.Program)
	if err != nil || after.Size() != before.Size() || !after.ModTime().Equal(before.ModTime()) {
		return ErrChanged
	}
	a.Program = own
	return nil
}

func copyProgram(from, to string) error {
	r, err := os.Open(from)
	if err != nil {
		return err
	}
	defer func() { _ = r.Close() }()                                    // it was only read from
	w, err := os.OpenFile(to, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o700) //nolint:gosec // a program
	if err != nil {
		return err
	}
	_, err = io.Copy(w, r)
	return errors.Join(err, w.Close())
}
