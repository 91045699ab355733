package config

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// SnapshotFile is a snapshot of an earlier run: a properties file with a model_snapshot.
type SnapshotFile struct {
	Path string // "" for none
	// Foreign says that TorchServe has written it: its interpreter is then not restored.
	Foreign bool
	// Notes are what the user should hear about it, such as newer ones that cannot be read.
	Notes []string
}

// LogDir is the folder of the log files.
func LogDir(environ []string) string {
	return cmp.Or(newEnvironment(environ).get("LOG_LOCATION"), "logs")
}

// CheckSnapshot says why the content of a file is no snapshot that can be restored, nil if it is one.
func CheckSnapshot(data []byte) error {
	props, err := parseProperties(data)
	if err != nil {
		return err
	}
	at := slices.IndexFunc(props, func(p property) bool { return p.key == snapshotKey })
	if at < 0 {
		return errors.New("there is no model_snapshot in it")
	}
	if _, err := parseSnapshot(strings.TrimSpace(props[at].value)); err != nil {
		return fmt.Errorf("model_snapshot: %w", err)
	}
	return nil
}

// restorable takes out of a snapshot what is not restored: switches that take a protection away have to be given at each start, and the interpreter
// that TorchServe was run with, which its command gives at each start, is not the one of this server.
func (l *loader) restorable(props []property, file SnapshotFile) []property {
	var kept []property
	for _, p := range props {
		o := l.option(p.key)
		switch {
		case o != nil && o.Opens:
			l.drop(p, file.Path)
		case p.key == notRestoredKey:
			for entry := range strings.SplitSeq(p.value, ";") {
				key, text, _ := strings.Cut(entry, "=")
				if o := l.option(key); o != nil && o.Opens {
					l.drop(property{key, text, p.line}, file.Path)
				}
			}
		case file.Foreign && p.key == pythonKey:
		default:
			kept = append(kept, p)
		}
	}
	return kept
}

// readSwitches takes from ./config.properties, which a snapshot goes before, what is not restored from the snapshot: the file says so at each start.
func (l *loader) readSwitches(file string) {
	if file == "" {
		return
	}
	data, err := os.ReadFile(file)
	if err != nil {
		l.warn("%s cannot be read, and the switches that it may give are not on: %s", file, err)
		return
	}
	props, err := parseProperties(data)
	if err != nil {
		l.warn("%s cannot be read, and the switches that it may give are not on: %s", file, err)
		return
	}
	for _, p := range props {
		if o := l.option(p.key); o == nil || !o.Opens {
			continue
		}
		v := Value{Key: p.key, Origin: Origin{Kind: FromFile, Name: file, Line: p.line}}
		if v.Text, err = l.substitute(p.value); err != nil {
			l.problem(v, err)
		}
		l.given[p.key] = v
	}
}

func (l *loader) drop(p property, file string) {
	l.dropped = append(l.dropped, Value{Key: p.key, Text: p.value, Origin: Origin{Kind: FromFile, Name: file, Line: p.line}})
}

// option gives the option of a key, nil for none.
func (l *loader) option(key string) *Option {
	for i := range l.options {
		if l.options[i].Key == key {
			return &l.options[i]
		}
	}
	return nil
}

// tellRestored warns of what a snapshot does to the other sources, and they to it.
func (l *loader) tellRestored(src Source) {
	file := l.c.RestoredFrom
	if NamedFile(src) == "" {
		l.c.warnings = append(l.c.warnings, src.Snapshot.Notes...)
	}
	if models := l.given[loadModelsKey]; l.c.Snapshot != nil && models.Origin.Kind > FromFile {
		remedy := "take model_snapshot out of " + l.c.File
		if file != "" {
			remedy = "start with --no-config-snapshots (--ncs)"
		}
		if l.c.AllModels {
			l.warn("%s: the models of the snapshot %s are restored as they were, and after them all that the model store holds besides is loaded; to load the "+
				"store alone, %s", models.Origin, l.c.File, remedy)
		} else {
			l.warn("%s has no effect: the models of the snapshot %s are restored, and no others; to load %s instead, %s", models.Origin, l.c.File, models.Text, remedy)
		}
	}
	if file == "" {
		return
	}
	if hidden := defaultFile(src); hidden != "" {
		l.warn("%s is not read but for its switches that take a protection away: the snapshot %s, with the settings and models of the last run, goes before "+
			"it, as TorchServe has it; name it by --ts-config, or start with --no-config-snapshots (--ncs), and it is read", filepath.Base(hidden), file)
	}
	for _, v := range l.dropped {
		l.tellDropped(v)
	}
}

// tellDropped warns that a switch of a snapshot is not on any more.
func (l *loader) tellDropped(v Value) {
	o := l.option(v.Key)
	if text := strings.TrimSpace(v.Text); strings.EqualFold(text, strings.TrimSpace(l.c.values[v.Key].Text)) || strings.EqualFold(text, o.Default) {
		return
	}
	remedy := "a configuration file (--ts-config)"
	if o.Flag != "" {
		remedy = o.Flag + ", or " + remedy
	}
	l.warn("%s: %s=%s is not restored from a snapshot, since it takes a protection away; to have it, give %s", v.Origin, v.Key, strings.TrimSpace(v.Text), remedy)
}

// Setting is a key with its text.
type Setting struct{ Key, Value string }

// SnapshotSettings are the settings that a snapshot keeps: all that were given, but for those that take a protection away, which are only named. The
// models are not among them.
func (c *Config) SnapshotSettings() []Setting {
	var all []Setting
	var opened []string
	for _, o := range Options() {
		v := c.values[o.Key]
		switch {
		case v.Origin.Kind == FromDefault || slices.Contains([]string{snapshotKey, notRestoredKey, "version", "tsConfigFile"}, o.Key):
			continue
		case o.Opens:
			opened = append(opened, o.Key+"="+strings.TrimSpace(v.Text))
			continue
		}
		text := v.Text
		switch {
		case o.Key == "model_store" || o.Key == "workflow_store":
			if abs, err := filepath.Abs(text); err == nil && text != "" {
				text = abs // as TorchServe's command does; a snapshot may be read from elsewhere
			}
		case o.Secret && v.Origin.Kind == FromFile && c.written[o.Key] != "":
			text = c.written[o.Key] // $$NAME$$ and not what it stands for
		}
		all = append(all, Setting{o.Key, text})
	}
	if len(opened) > 0 {
		all = append(all, Setting{notRestoredKey, strings.Join(opened, ";")})
	}
	if c.File != "" {
		all = append(all, Setting{"tsConfigFile", c.File})
	}
	return all
}
