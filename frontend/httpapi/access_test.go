package httpapi

import (
	"net/url"
	"testing"
)

// TestAccessLineHidesSecrets: what a registration's URL needs for its archive is nobody's who reads the log; the rest of the line is TorchServe's.
func TestAccessLineHidesSecrets(t *testing.T) {
	t.Parallel()
	escape := url.QueryEscape
	for target, want := range map[string]string{ //nolint:gosec // the secrets are made up
		"/models?url=m.mar&initial_workers=1":              "/models?url=m.mar&initial_workers=1",
		"/models?url=https://user:pass@host/m.mar&a=1":     "/models?url=https://host/m.mar&a=1",
		"/models?url=https://host/m.mar?sig=abc&sp=r":      "/models?url=https://host/m.mar?sig=***&sp=r",
		"/models?a=1&url=" + escape("https://h/m?token=x"): "/models?a=1&url=" + escape("https://h/m?token=") + "***",
		"/predictions/m?key=1":                             "/predictions/m?key=1",
	} {
		e := AccessEntry{Peer: "127.0.0.1:5", Method: "POST", Target: target, Version: "HTTP/1.1", Status: 200}
		if got, want := e.Line(), `/127.0.0.1:5 "POST `+want+` HTTP/1.1" 200 0`; got != want {
			t.Errorf("got  %s\nwant %s", got, want)
		}
	}
}
