package host

import (
	"context"
	"io"
	"log" //nolint:depguard // hclog's interface asks for it
	"log/slog"

	"github.com/hashicorp/go-hclog"
)

// pluginLogger gives go-plugin's log lines to slog, all at debug level: what matters of them reaches users as a fault.
type pluginLogger struct {
	logger *slog.Logger
	name   string
}

var _ hclog.Logger = pluginLogger{}

// Log implements hclog.Logger.
func (l pluginLogger) Log(level hclog.Level, msg string, args ...any) {
	attrs := append([]any{slog.String("event", msg), slog.String("plugin_level", level.String())}, args...)
	l.logger.Log(context.Background(), slog.LevelDebug, "go-plugin", attrs...)
}

// Trace implements hclog.Logger; so do Debug, Info, Warn and Error.
func (l pluginLogger) Trace(string, ...any) {} // every stdio chunk: too much even for debugging

// Debug implements hclog.Logger.
func (l pluginLogger) Debug(msg string, args ...any) { l.Log(hclog.Debug, msg, args...) }

// Info implements hclog.Logger.
func (l pluginLogger) Info(msg string, args ...any) { l.Log(hclog.Info, msg, args...) }

// Warn implements hclog.Logger.
func (l pluginLogger) Warn(msg string, args ...any) { l.Log(hclog.Warn, msg, args...) }

// Error implements hclog.Logger.
func (l pluginLogger) Error(msg string, args ...any) { l.Log(hclog.Error, msg, args...) }

// IsTrace implements hclog.Logger; the other levels are one.
func (l pluginLogger) IsTrace() bool { return false }

// IsDebug implements hclog.Logger.
func (l pluginLogger) IsDebug() bool { return l.logger.Enabled(context.Background(), slog.LevelDebug) }

// IsInfo implements hclog.Logger.
func (l pluginLogger) IsInfo() bool { return l.IsDebug() }

// IsWarn implements hclog.Logger.
func (l pluginLogger) IsWarn() bool { return l.IsDebug() }

// IsError implements hclog.Logger.
func (l pluginLogger) IsError() bool { return l.IsDebug() }

// ImpliedArgs implements hclog.Logger.
func (l pluginLogger) ImpliedArgs() []any { return nil }

// With implements hclog.Logger.
func (l pluginLogger) With(args ...any) hclog.Logger {
	return pluginLogger{logger: l.logger.With(args...), name: l.name}
}

// Name implements hclog.Logger.
func (l pluginLogger) Name() string { return l.name }

// Named implements hclog.Logger.
func (l pluginLogger) Named(name string) hclog.Logger {
	return pluginLogger{logger: l.logger, name: name}
}

// ResetNamed implements hclog.Logger.
func (l pluginLogger) ResetNamed(name string) hclog.Logger { return l.Named(name) }

// SetLevel implements hclog.Logger; slog's handler decides.
func (l pluginLogger) SetLevel(hclog.Level) {}

// GetLevel implements hclog.Logger.
func (l pluginLogger) GetLevel() hclog.Level {
	if l.IsDebug() {
		return hclog.Debug
	}
	return hclog.Off
}

// StandardLogger implements hclog.Logger; go-plugin's client has no use for it.
func (l pluginLogger) StandardLogger(*hclog.StandardLoggerOptions) *log.Logger {
	return log.New(io.Discard, "", 0)
}

// StandardWriter implements hclog.Logger; go-plugin's client has no use for it.
func (l pluginLogger) StandardWriter(*hclog.StandardLoggerOptions) io.Writer { return io.Discard }
