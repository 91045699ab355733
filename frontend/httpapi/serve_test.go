package httpapi

import (
	"bufio"
	"context"
	"flag"
	"log/slog"
	"os"
	"os/signal"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/flambeau-serve/flambeau/frontend/httpapi/token"
	"github.com/flambeau-serve/flambeau/internal/infer"
	"github.com/flambeau-serve/flambeau/internal/telemetry"
)

// TestServeFakes serves the fakes with the settings of a config.properties file until it is told to stop: a server to try requests on by hand.
func TestServeFakes(t *testing.T) {
	if *serveConfig == "" {
		t.Skip("needs -serve FILE")
	}
	set := properties(t, *serveConfig)
	var startup []string
	for m := range strings.SplitSeq(set["load_models"], ",") {
		if name, _, ok := strings.Cut(m, "="); ok {
			startup = append(startup, name)
		}
	}
	models := newFakeModels(startup...)
	metrics, err := telemetry.New(telemetry.Options{Mode: telemetry.Mode(set["metrics_mode"]), AutoDetect: true})
	if err != nil {
		t.Fatal(err)
	}
	predictor := &fakePredictor{models: models}
	opts := Options{
		Predictor: counting{predictor, metrics}, Models: models, Metrics: metrics, ModelAPI: set["enable_model_api"] == "true",
		OpenInference: set["ts_open_inference_protocol"] == "true", Logger: slog.New(slog.NewTextHandler(os.Stderr, nil)),
		CORS:      CORS{set["cors_allowed_origin"], set["cors_allowed_methods"], set["cors_allowed_headers"]},
		AccessLog: func(e AccessEntry) { t.Log(e.Line()) },
	}
	opts.MaxRequestSize, _ = strconv.ParseInt(set["max_request_size"], 10, 64)
	if set["disable_token_authorization"] != "true" {
		minutes, _ := strconv.Atoi(set["token_expiration_min"])
		if opts.Keys, err = token.New(token.Options{Expiration: time.Duration(minutes) * time.Minute}); err != nil {
			t.Fatal(err)
		}
	}
	api, err := New(opts)
	if err != nil {
		t.Fatal(err)
	}
	addr := func(key string) string { return strings.TrimPrefix(set[key], "http://") }
	which := map[string]Port{addr("inference_address"): Inference, addr("management_address"): Management, addr("metrics_address"): MetricsPort}
	if addr("inference_address") == addr("management_address") {
		which[addr("inference_address")] = Joint
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, os.Interrupt)
	defer stop()
	for at, port := range which {
		s, err := api.Listen(ctx, at, port, nil)
		if err != nil {
			t.Fatal(err)
		}
		go func() { _ = s.Serve() }()
	}
	if err := metrics.CollectSystem(ctx, telemetry.SystemOptions{Interval: 2 * time.Second}); err != nil {
		t.Fatal(err)
	}
}

var serveConfig = flag.String("serve", "", "config.properties to serve the fakes with")

type counting struct {
	*fakePredictor
	metrics *telemetry.Metrics
}

func (c counting) Submit(ctx context.Context, ref infer.ModelRef, item infer.Item) (infer.Result, error) {
	start := time.Now()
	res, err := c.fakePredictor.Submit(ctx, ref, item)
	c.metrics.Predicted(telemetry.Prediction{Ref: ref, Total: time.Since(start), Err: err})
	c.metrics.WorkerLoaded(infer.ModelRef{Name: ref.Name, Version: "1.0"}, 9000, time.Second)
	c.metrics.ModelLine("[METRICS]PredictionTime.ms:0.01|#ModelName:" + ref.Name + ",Level:Model|#type:GAUGE|#hostname:vm,1795972601," + item.ID)
	return res, err
}

func properties(t *testing.T, path string) map[string]string {
	t.Helper()
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = f.Close() }()
	set := map[string]string{}
	for s := bufio.NewScanner(f); s.Scan(); {
		if k, v, ok := strings.Cut(s.Text(), "="); ok {
			set[k] = v
		}
	}
	return set
}
