package archive

import (
	"bytes"
	"log/slog"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/flambeau-serve/flambeau/internal/infer"
)

func TestAdmissionSettings(t *testing.T) {
	for name, tc := range map[string]struct {
		text     string
		fairness *infer.Fairness
		most     int
		warns    string
	}{
		"none":            {text: "minWorkers: 1\n"},
		"both":            {text: "maxConcurrency: 7\nfairness: {key: client_ip, maxShare: 0.25}\n", fairness: &infer.Fairness{Key: infer.ByAddress, MaxShare: 0.25}, most: 7},
		"no share":        {text: "fairness:\n  key: header:X-Tenant\n", fairness: &infer.Fairness{Key: "header:X-Tenant", MaxShare: 0.5}},
		"whole number":    {text: "fairness: {key: token, maxShare: 1}\n", fairness: &infer.Fairness{Key: infer.ByToken, MaxShare: 1}},
		"off":             {text: "fairness: {key: off}\n", fairness: &infer.Fairness{MaxShare: 0.5}},
		"another key":     {text: "fairness: {key: ip}\n", warns: "client_ip, token, header:NAME or off"},
		"too much":        {text: "fairness: {key: token, maxShare: 1.5}\n", warns: "above 0, at most 1"},
		"nothing left":    {text: "fairness: {key: token, maxShare: 0}\n", warns: "above 0, at most 1"},
		"no map":          {text: "fairness: client_ip\n", warns: "a map with key"},
		"a list as a key": {text: "fairness: {key: [a]}\n", warns: "client_ip, token, header:NAME or off"},
		"negative":        {text: "maxConcurrency: -1\n", warns: "an integer of at least 0"},
	} {
		var log bytes.Buffer
		s, err := parseSettings([]byte(tc.text), slog.New(slog.NewTextHandler(&log, nil)))
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(tc.fairness, s.Fairness); diff != "" || s.MaxConcurrency != tc.most {
			t.Errorf("%s: %d %s", name, s.MaxConcurrency, diff)
		}
		if (tc.warns == "") != (log.Len() == 0) || !strings.Contains(log.String(), tc.warns) {
			t.Errorf("%s: the log says %q", name, log.String())
		}
	}
}
