package host

import (
	"bytes"
	"log/slog"
	"strings"
	"testing"

	"github.com/hashicorp/go-hclog"
)

func TestPluginLogger(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	l := pluginLogger{logger: slog.New(slog.NewTextHandler(&out, &slog.HandlerOptions{Level: slog.LevelDebug}))}
	l.With("pid", 7).Named("x").Error("plugin process exited", "error", "exit status 1")
	for _, want := range []string{"level=DEBUG", `event="plugin process exited"`, "plugin_level=error", "pid=7", `error="exit status 1"`} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("%s is not in %s", want, out.String())
		}
	}
	quiet := pluginLogger{logger: slog.New(slog.DiscardHandler)}
	if quiet.IsDebug() || quiet.GetLevel() != hclog.Off {
		t.Error("work is done for a log that nobody reads")
	}
}
