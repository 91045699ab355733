package main

import (
	"testing"

	"github.com/flambeau-serve/flambeau/internal/config"
	"github.com/flambeau-serve/flambeau/internal/telemetry"
)

// TestMetricsMode: without settings of metrics `flambeau serve` shows them, with those of handlers, and the torchserve command logs them as TorchServe does. What is set holds.
func TestMetricsMode(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		set        map[string]string
		torchserve bool
		mode       telemetry.Mode
		detect     bool
	}{
		{nil, false, telemetry.ModePrometheus, true},
		{nil, true, telemetry.ModeLog, false},
		{map[string]string{"metrics_mode": "prometheus"}, true, telemetry.ModePrometheus, false},
		{map[string]string{"metrics_mode": "prometheus"}, false, telemetry.ModePrometheus, false},
		{map[string]string{"metrics_mode": "log"}, false, telemetry.ModeLog, false},
		{map[string]string{"model_metrics_auto_detect": "false"}, false, telemetry.ModePrometheus, false},
		{map[string]string{"model_metrics_auto_detect": "true"}, true, telemetry.ModeLog, true},
		{map[string]string{"metrics_config": "metrics.yaml"}, false, telemetry.ModePrometheus, false},
	} {
		cfg, err := config.Load(config.Source{Flags: tc.set})
		if err != nil {
			t.Fatal(err)
		}
		if mode, detect := metricsMode(cfg, tc.torchserve); mode != tc.mode || detect != tc.detect {
			t.Errorf("%v, torchserve %v: %s, %v; want %s, %v", tc.set, tc.torchserve, mode, detect, tc.mode, tc.detect)
		}
	}
}
