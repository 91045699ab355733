package config

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"
)

// Source is where Load reads from.
type Source struct {
	// Flags are the settings of the command line, by key.
	Flags map[string]string
	// File is the --ts-config of the command line, "" for none. The variable TS_CONFIG_FILE goes before it, and without both
	// a Snapshot is read, or else ./config.properties if it is there.
	File string
	// Environ is the environment, KEY=VALUE.
	Environ []string
	// Snapshot is the newest snapshot of an earlier run. It is read when no file is named, before ./config.properties.
	Snapshot SnapshotFile
	// SnapshotDir is where snapshots are written; it is only passed on.
	SnapshotDir string
	// Dir is the folder that ./config.properties is looked for in; "" is the working folder.
	Dir string
}

// DefaultFile is read when no other file is named.
const DefaultFile = "config.properties"

// ConfigFileVariable goes before --ts-config.
const ConfigFileVariable = "TS_CONFIG_FILE"

// Load reads all the settings and checks them. Its error names everything that is wrong, one problem per line.
func Load(src Source) (*Config, error) {
	environ := newEnvironment(src.Environ)
	c := &Config{GPULimit: -1, values: map[string]Value{}}
	l := &loader{c: c, options: Options(), environ: environ, given: map[string]Value{}}
	if err := l.readFile(src); err != nil {
		return nil, err
	}
	l.readFlags(src.Flags)
	l.readEnvironment()
	l.setAll()
	l.tellRestored(src)
	c.SnapshotDir = src.SnapshotDir
	c.Env = environ.fixed(&l.problems)
	l.relate()
	if len(l.problems) > 0 {
		return nil, errors.Join(l.problems...)
	}
	return c, nil
}

// loader collects the values of all sources.
type loader struct {
	c        *Config
	options  []Option
	environ  environment
	given    map[string]Value
	dropped  []Value // of a snapshot: what is not restored from it
	problems []error
}

func (l *loader) warn(format string, args ...any) {
	l.c.warnings = append(l.c.warnings, fmt.Sprintf(format, args...))
}

// problemError is a value that cannot be used.
type problemError struct {
	value Value
	cause error
}

func (p *problemError) Error() string {
	return fmt.Sprintf("%s: %s: %v", p.value.Origin, p.value.Key, p.cause)
}

func (p *problemError) Unwrap() error { return p.cause }

func (l *loader) problem(v Value, err error) {
	l.problems = append(l.problems, &problemError{v, err})
}

// NamedFile gives the properties file that somebody has named, "" for none.
func NamedFile(src Source) string {
	return cmp.Or(newEnvironment(src.Environ).get(ConfigFileVariable), src.File)
}

// FindFile gives the properties file that would be read, "" for none.
func FindFile(src Source) string {
	return cmp.Or(NamedFile(src), src.Snapshot.Path, defaultFile(src))
}

// defaultFile gives ./config.properties, "" if it is not there.
func defaultFile(src Source) string {
	file := filepath.Join(src.Dir, DefaultFile)
	if info, err := os.Stat(file); err == nil && info.Mode().IsRegular() {
		return file
	}
	return ""
}

func (l *loader) readFile(src Source) error {
	file := FindFile(src)
	if file == "" {
		return nil
	}
	data, err := os.ReadFile(file)
	if err != nil {
		return fmt.Errorf("the configuration file cannot be read: %w", err)
	}
	props, err := parseProperties(data)
	if err != nil {
		return fmt.Errorf("the configuration file %s: %w", file, err)
	}
	l.c.File = file
	if NamedFile(src) == "" && file == src.Snapshot.Path {
		l.c.RestoredFrom = file
		props = l.restorable(props, src.Snapshot)
		l.readSwitches(defaultFile(src))
	}
	for _, p := range props {
		v := Value{Key: p.key, Origin: Origin{Kind: FromFile, Name: file, Line: p.line}}
		if before, twice := l.given[p.key]; twice {
			l.warn("%s: %s is set again, and the value of line %d does not count", v.Origin, p.key, before.Origin.Line)
		}
		if v.Text, err = l.substitute(p.value); err != nil {
			l.problem(v, err)
		}
		if v.Text != p.value {
			if l.c.written == nil {
				l.c.written = map[string]string{}
			}
			l.c.written[p.key] = p.value
		}
		l.given[p.key] = v
	}
	l.checkKeys(props, file)
	return nil
}

// substitute replaces $$NAME$$ by environment variables, as TorchServe does in all values.
func (l *loader) substitute(value string) (string, error) {
	var missing []error
	out := regexp.MustCompile(`\$\$([^$]+[^$])\$\$`).ReplaceAllStringFunc(value, func(m string) string {
		name := strings.Trim(m, "$")
		v, ok := l.environ.lookup(name)
		if !ok {
			missing = append(missing, fmt.Errorf("Invalid Environment Variable %s: $$%s$$ stands for it, and it is not set", name, name)) //nolint:staticcheck // TorchServe's words
		}
		return v
	})
	return out, errors.Join(missing...)
}

// checkKeys warns of keys that nobody knows.
func (l *loader) checkKeys(props []property, file string) {
	known := map[string]bool{}
	names := make([]string, 0, len(l.options))
	for _, o := range l.options {
		known[o.Key] = true
		names = append(names, o.Key)
	}
	warned := map[string]bool{}
	for _, p := range props {
		if known[p.key] || warned[p.key] {
			continue
		}
		warned[p.key] = true
		hint := ""
		if near := nearest(p.key, names); near != "" {
			hint = "; did you mean " + near + "?"
		}
		l.warn("%s: the key %s is not known and has no effect%s", Origin{Kind: FromFile, Name: file, Line: p.line}, p.key, hint)
	}
}

func (l *loader) readFlags(flags map[string]string) {
	for _, o := range l.options {
		if text, ok := flags[o.Key]; ok {
			l.given[o.Key] = Value{Key: o.Key, Text: text, Origin: Origin{Kind: FromFlag, Name: cmp.Or(o.Flag, "the command line")}}
		}
	}
}

// readEnvironment takes the TS_ variables, if the settings so far want them.
func (l *loader) readEnvironment() {
	if v, ok := l.environ.lookup("TS_OPEN_INFERENCE_PROTOCOL"); ok && v != "" { // read always
		text := "false"
		if v == "oip" {
			text = "true"
		}
		l.given[oipKey] = Value{Key: oipKey, Text: text, Origin: Origin{Kind: FromEnv, Name: "TS_OPEN_INFERENCE_PROTOCOL"}}
	}
	if !strings.EqualFold(strings.TrimSpace(l.given[enableEnvKey].Text), "true") {
		return
	}
	for _, o := range l.options {
		if o.Key == oipKey || o.Key == allowedURLsKey && !strings.EqualFold(strings.TrimSpace(l.given[envURLsKey].Text), "true") {
			continue
		}
		for _, name := range o.Env {
			if text, ok := l.environ.lookup(name); ok {
				l.given[o.Key] = Value{Key: o.Key, Text: text, Origin: Origin{Kind: FromEnv, Name: name}}
			}
		}
	}
	l.checkVariables()
}

// checkVariables warns of TS_ variables that look like misspelt ones.
func (l *loader) checkVariables() {
	var names []string
	for _, o := range l.options {
		names = append(names, o.Env...)
	}
	for _, name := range l.environ.names() {
		if !strings.HasPrefix(name, "TS_") || slices.Contains(names, name) {
			continue
		}
		if near := nearest(name, names); near != "" {
			l.warn("the environment variable %s is not known and has no effect; did you mean %s?", name, near)
		}
	}
}

// setAll parses every value into the Config.
func (l *loader) setAll() {
	for _, o := range l.options {
		v, given := l.given[o.Key]
		if !given {
			v = Value{Key: o.Key, Text: o.Default}
		}
		l.c.values[o.Key] = v
		l.warnOfEffect(o, v)
		trimmed := strings.TrimSpace(v.Text)
		// An empty text is "not set" for a text; for everything else it is a mistake of the file, and its default is not meant.
		if o.set == nil || !given && o.Default == "" {
			continue
		}
		err := o.set(l.c, trimmed)
		var soft tolerated
		switch {
		case errors.As(err, &soft):
			l.warn("%s: %s: %s", v.Origin, v.Key, soft)
		case err != nil:
			l.problem(v, err)
		}
	}
}

func (l *loader) warnOfEffect(o Option, v Value) {
	if v.Origin.Kind == FromDefault || strings.TrimSpace(v.Text) == o.Default {
		return
	}
	switch o.Effect {
	case JVMOnly:
		l.warn("%s: %s has no effect: it is about the Java process of TorchServe, which there is none of", v.Origin, o.Key)
	case Pending:
		l.warn("%s: %s has no effect yet in this version of Flambeau", v.Origin, o.Key)
	case Works, Informal:
	}
}

// podAccept is drain_accept_for in a pod of Kubernetes: what its endpoints usually take to follow.
const podAccept = 5 * time.Second

// relate checks what concerns more than one key.
func (l *loader) relate() {
	c := l.c
	if c.WorkflowStore == "" {
		c.WorkflowStore = c.ModelStore
	}
	if c.MetricsAPI {
		for key, other := range map[string]Address{"inference_address": c.Inference, "management_address": c.Management} {
			if c.Metrics == other && c.Metrics != (Address{}) && c.Metrics.Port+len(c.Metrics.Path) > 0 {
				l.problem(l.c.values["metrics_address"], fmt.Errorf("it is the same as %s (%s); give it an address of its own", key, other))
				break
			}
		}
	}
	if _, given := l.given["drain_accept_for"]; !given && l.environ.get("KUBERNETES_SERVICE_HOST") != "" {
		c.DrainAccept = min(podAccept, c.ShutdownTimeout/2)
	}
	if c.DrainAccept > 0 && c.DrainAccept >= c.ShutdownTimeout {
		l.problem(l.c.values["drain_accept_for"], fmt.Errorf("it has to be less than shutdown_timeout (%s), of which it is a part", c.ShutdownTimeout))
	}
	if (c.TLS.CertificateFile == "") != (c.TLS.PrivateKeyFile == "") && c.TLS.Keystore == "" && c.usesTLS() {
		l.problem(l.c.values["certificate_file"], errors.New("certificate_file and private_key_file go together: one of them is missing"))
	}
}

func (c *Config) usesTLS() bool {
	return c.Inference.TLS || c.Management.TLS || c.MetricsAPI && c.Metrics.TLS
}

// String names the origin for a message.
func (o Origin) String() string {
	switch o.Kind {
	case FromFile:
		return fmt.Sprintf("%s, line %d", o.Name, o.Line)
	case FromFlag:
		return o.Name
	case FromEnv:
		return "the environment variable " + o.Name
	case FromDefault:
	}
	return "default"
}

// Management tells where a server that was started with these settings is managed: all that a client needs of them. Other settings, which may
// be wrong or stand for variables that only the server has, are not looked at.
func Management(src Source) (*Config, error) {
	c := &Config{GPULimit: -1, values: map[string]Value{}}
	l := &loader{c: c, environ: newEnvironment(src.Environ), given: map[string]Value{}}
	needed := []string{"management_address", "certificate_file", enableEnvKey}
	for _, o := range Options() {
		if slices.Contains(needed, o.Key) {
			l.options = append(l.options, o)
		}
	}
	if err := l.readFile(src); err != nil {
		return nil, err
	}
	l.problems = slices.DeleteFunc(l.problems, func(err error) bool {
		var p *problemError
		return errors.As(err, &p) && !slices.Contains(needed, p.value.Key)
	})
	l.readEnvironment()
	l.setAll()
	return c, errors.Join(l.problems...)
}
