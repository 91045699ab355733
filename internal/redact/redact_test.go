package redact

import (
	"net/url"
	"strings"
	"testing"
)

func TestURL(t *testing.T) {
	t.Parallel()
	for raw, want := range map[string]string{ //nolint:gosec // nobody's
		"":                                       "",
		"resnet.mar":                             "resnet.mar",
		"/models/a@b/x.mar":                      "/models/a@b/x.mar",
		"https://host/x.mar":                     "https://host/x.mar",
		"https://host:8443/x.mar?version=2":      "https://host:8443/x.mar?version=2",
		"https://[::1]:80/a@b.mar":               "https://[::1]:80/a@b.mar",
		"https://host:80/a@b.mar":                "https://host:80/a@b.mar",
		"https://user:pass@host/x.mar":           "https://host/x.mar",
		"https://user@host:1/x.mar":              "https://host:1/x.mar",
		"https://u:p@ss@host/x.mar":              "https://host/x.mar",
		"https://u:p/ss@host/x.mar":              "https://host/x.mar",
		"https://u:p?ss@host/x.mar":              "https://host/x.mar",
		"https://u:p#ss@host/x.mar":              "https://host/x.mar",
		"https://h/x?sv=1&sig=abc&sp=r":          "https://h/x?sv=1&sig=***&sp=r",
		"https://h/x?SIG=abc#sha256=0f":          "https://h/x?SIG=***#sha256=0f",
		"https://h/x?X-Amz-Signature=a":          "https://h/x?X-Amz-Signature=***",
		"https://h/x?X-Amz-Security-Token=a&b=c": "https://h/x?X-Amz-Security-Token=***&b=c",
		"https://h/x?AWSAccessKeyId=a":           "https://h/x?AWSAccessKeyId=***",
		"https://h/x?X-Goog-Signature=a":         "https://h/x?X-Goog-Signature=***",
		"https://h/x?access_token=a;b=c":         "https://h/x?access_token=***;b=c",
		"https://h/x?%73ig=a":                    "https://h/x?%73ig=***",
		"https://h/x?%zz=a":                      "https://h/x?%zz=***",
		"https://h/x?sig=":                       "https://h/x?sig=",
		"https://h/x?sig":                        "https://h/x?sig",
		"https://h/x?from=https://u:p@i/y":       "https://h/x?from=https://i/y",
		"https://h/x?from=https%3A%2F%2Fu:p@i/y": "https://h/x?from=https%3A%2F%2Fi%2Fy",
		"s3://bucket/key?region=eu&token=x":      "s3://bucket/key?region=eu&token=***",
	} {
		if got := URL(raw); got != want {
			t.Errorf("%q is told as %q, want %q", raw, got, want)
		}
	}
}

func TestTarget(t *testing.T) {
	t.Parallel()
	escape := url.QueryEscape
	for raw, want := range map[string]string{ //nolint:gosec // nobody's
		"/ping":                                   "/ping",
		"/predictions/m?key=1&token=2":            "/predictions/m?key=1&token=2", // a model's own parameters: no URL is among them
		"/models?limit=2&next_page_token=4":       "/models?limit=2&next_page_token=4",
		"/models?url=m.mar&next_page_token=4":     "/models?url=m.mar&next_page_token=4",
		"/models?url=m.mar&model_name=a%20b":      "/models?url=m.mar&model_name=a%20b",
		"/models?url=https://h/m.mar&batch=4":     "/models?url=https://h/m.mar&batch=4",
		"/models?url=https%3A%2F%2Fh/m.mar":       "/models?url=https%3A%2F%2Fh/m.mar",
		"/models?url=https://u:p@h/m.mar&b=4":     "/models?url=https://h/m.mar&b=4",
		"/models?%75rl=https://u:p@h/m.mar":       "/models?%75rl=https://h/m.mar",
		"/models?URL=https://u:p@h/m.mar":         "/models?URL=https://h/m.mar",
		"/models?url=https://h/m.mar?sv=1&sig=ab": "/models?url=https://h/m.mar?sv=1&sig=***",
		"/models?url=https://h/m.mar?sig=a%2Bb&c": "/models?url=https://h/m.mar?sig=***&c",
		"/models?url=" + escape("https://u:p@h/m.mar?X-Amz-Credential=C&X-Amz-Signature=S&x=1") + "&model_name=m": "/models?url=" +
			escape("https://h/m.mar?X-Amz-Credential=") + "***" + escape("&X-Amz-Signature=") + "***" + escape("&x=1") + "&model_name=m",
		"/models?url=https://h/m.mar%3Fsig%3Dab":               "/models?url=" + escape("https://h/m.mar?sig=") + "***",
		"/models?url=" + escape(escape("https://u:p@h/m.mar")): "/models?url=***",
	} {
		if got := Target(raw); got != want {
			t.Errorf("%q is told as %q, want %q", raw, got, want)
		}
	}
}

// TestNestedURLs: how deep URLs lie in each other decides what is told of them, and not how long that takes.
func TestNestedURLs(t *testing.T) {
	t.Parallel()
	deep := "a://u:hunter2@h"
	for range 200 {
		deep = "a://h?u=" + deep
	}
	encoded := "a://u:hunter2@h"
	for range 8 {
		encoded = "a://h?u=" + url.QueryEscape(encoded) + "&v=b://c"
	}
	for _, raw := range []string{deep, encoded, strings.Repeat("a://h?u=a://h;", 5000), "a://h?u=" + strings.Repeat("%25", 20_000)} {
		if told := URL(raw) + Target("/models?url="+raw) + Target("/models?url="+url.QueryEscape(raw)); strings.Contains(told, "hunter2") {
			t.Errorf("%.200s is told", raw)
		}
	}
}

func FuzzURL(f *testing.F) {
	for _, seed := range []string{
		"https://u:p@h/x.mar?sig=1#sha256=0f", "https://u:p/x@h", "a?b=c://d@e", "https://h/x?u=https%3A%2F%2Fu%3Ap%40i%3Fsig%3D1", "://@?=&;#", "https://h?%2525=1",
	} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, raw string) {
		for _, tell := range []func(string) string{URL, Target} {
			told := tell(raw)
			if again := tell(told); again != told {
				t.Errorf("%q is told as %q, and that as %q", raw, told, again)
			}
		}
		// A secret that the fuzzer does not know is in no form of the answer.
		const secret = "hunter2hunter2"
		if strings.ContainsAny(raw, "/?#@:") {
			return
		}
		for _, text := range []string{"https://u:" + secret + "@" + raw + "/x", "https://h/" + raw + "?sig=" + secret, "https://h/x?token=" + secret + "#" + raw} {
			if told := URL(text); strings.Contains(told, secret) {
				t.Errorf("%q is told as %q", text, told)
			}
			if told := Target("/models?url=" + url.QueryEscape(text)); strings.Contains(told, secret) {
				t.Errorf("%q is told in a target as %q", text, told)
			}
		}
	})
}
