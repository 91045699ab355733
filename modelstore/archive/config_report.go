package archive

import (
	"context"
	"log/slog"
)

// ConfigEntry is a key at the top of a model's configuration file. Server says that the server reads it; other keys are the handler's. Text is the value if
// that is a text, and "" for any other.
type ConfigEntry struct {
	Key    string
	Line   int
	Server bool
	Text   string
}

// ConfigProblem is a value that the server ignores.
type ConfigProblem struct {
	Key      string
	Line     int
	Value    string
	Expected string // "" for a key that is not supported at all
}

// ReadConfig reads a model-config.yaml as Open does, and tells about each key of it.
func ReadConfig(text []byte) (Settings, []ConfigEntry, []ConfigProblem, error) {
	entries, err := parseYAML(text)
	if err != nil {
		return Settings{}, nil, nil, err
	}
	keys := make([]ConfigEntry, 0, len(entries))
	for _, e := range entries {
		text, _ := e.text()
		keys = append(keys, ConfigEntry{Key: e.key, Line: e.line, Server: isOurs(e.key), Text: text})
	}
	told := &collected{}
	settings, err := parseSettings(text, slog.New(told))
	return settings, keys, told.problems, err
}

// collected is a log handler that keeps what parseSettings warns of.
type collected struct{ problems []ConfigProblem }

// Enabled implements slog.Handler.
func (c *collected) Enabled(context.Context, slog.Level) bool { return true }

// Handle implements slog.Handler.
func (c *collected) Handle(_ context.Context, r slog.Record) error {
	var p ConfigProblem
	r.Attrs(func(a slog.Attr) bool {
		switch a.Key {
		case "key":
			p.Key = a.Value.String()
		case "line":
			p.Line = int(a.Value.Int64())
		case "value":
			p.Value = a.Value.String()
		case "expected":
			p.Expected = a.Value.String()
		}
		return true
	})
	c.problems = append(c.problems, p)
	return nil
}

// WithAttrs implements slog.Handler; nobody adds any.
func (c *collected) WithAttrs([]slog.Attr) slog.Handler { return c }

// WithGroup implements slog.Handler; nobody asks for one.
func (c *collected) WithGroup(string) slog.Handler { return c }
