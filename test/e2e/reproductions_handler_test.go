package e2e

import (
	"bytes"
	"encoding/json"
	"fmt"
	"mime/multipart"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

const showing = `def handle(data, ctx):
    if data is None:
        return None
    return [{k: [type(v).__name__, v.decode("latin1") if isinstance(v, (bytes, bytearray)) else v]
             for k, v in row.items()} for row in data]
`

// TestBodiesThatHandlersSee sends bodies of every kind.
func TestBodiesThatHandlersSee(t *testing.T) {
	s := NewBox(t).serving(t, Options{}, Archive{Name: "show", Handler: showing})
	var form bytes.Buffer
	w := multipart.NewWriter(&form)
	file, err := w.CreateFormFile("img", "img.bin")
	if err == nil {
		_, err = file.Write([]byte("\x00\x01"))
	}
	if err == nil {
		err = w.WriteField("note", "a note")
	}
	if err == nil {
		err = w.Close()
	}
	if err != nil {
		t.Fatal(err)
	}
	const urlencoded = "application/x-www-form-urlencoded"
	for _, tc := range []struct{ name, method, kind, body, want string }{
		{"JSON", http.MethodPost, asJSON, `{"a":1}`, `{"body":["dict",{"a":1}]}`},
		{"JSON with a charset", http.MethodPost, asJSON + "; charset=utf-8", `{"a":1}`, `{"body":["dict",{"a":1}]}`},
		{"broken JSON", http.MethodPost, asJSON, `{bad`, `{"body":["bytearray","{bad"]}`},
		{"text", http.MethodPost, "text/plain", "héllo", `{"body":["str","héllo"]}`},
		{"no content type", http.MethodPost, "", "abc", `{"body":["bytearray","abc"]}`},
		{"PUT of a file", http.MethodPut, "", "abc", `{"body":["bytearray","abc"]}`},
		{"multipart", http.MethodPost, w.FormDataContentType(), form.String(), `{"img":["bytearray","\u0000\u0001"],"note":["bytearray","a note"]}`},
		{"a form", http.MethodPost, urlencoded, "x=1&y=2", `{"x":["bytearray","1"],"y":["bytearray","2"]}`},
		{"GET", http.MethodGet, "", "", `{"body":["bytearray",""]}`},
		{"POST without a body", http.MethodPost, "", "", `{"body":["bytearray",""]}`},
		{"a form without =", http.MethodPost, urlencoded, "abc", `{}`},
	} {
		t.Run(tc.name, func(t *testing.T) {
			var header []string
			if tc.kind != "" {
				header = []string{"Content-Type", tc.kind}
			}
			a := s.MustAsk(t, http.StatusOK, tc.method, s.Inference+"/predictions/show", []byte(tc.body), header...)
			var got, want any
			if err := json.Unmarshal(a.Body, &got); err != nil {
				t.Fatalf("%v: %s", err, a.Body)
			}
			if err := json.Unmarshal([]byte(tc.want), &want); err != nil {
				t.Fatal(err)
			}
			if fmt.Sprintf("%#v", got) != fmt.Sprintf("%#v", want) {
				t.Errorf("the handler sees %s, want %s", a.Body, tc.want)
			}
		})
	}
}

const returning = `V = {"s": "plain", "b": b"\x00\xff", "d": {"b": 1, "a": [1, 2]}, "l": [1, 2], "none": None,
     "t": True, "f": 0.1, "u": "你好", "nan": float("nan"), "set": {1}}


def handle(data, ctx):
    if data is None:
        return None
    k = data[0]["body"]["k"]
    if k == "csv":
        ctx.set_response_content_type(0, "text/csv")
        return ["a,b"]
    return [V[k]]
`

// TestWhatHandlersReturn has every byte, and no content type that the handler did not set.
func TestWhatHandlersReturn(t *testing.T) {
	s := NewBox(t).serving(t, Options{}, Archive{Name: "returning", Handler: returning})
	for k, want := range map[string]string{
		"s": "plain", "b": "\x00\xff", "d": "{\n  \"b\": 1,\n  \"a\": [\n    1,\n    2\n  ]\n}", "l": "[\n  1,\n  2\n]", "none": "null", "t": "true", "f": "0.1",
		"u": "你好", "nan": "NaN", "csv": "a,b",
	} {
		a := s.predict(t, "returning", asJSON, fmt.Sprintf(`{"k": %q}`, k))
		kind, set := a.Header["Content-Type"]
		if a.Status != http.StatusOK || string(a.Body) != want || set != (k == "csv") || set && kind[0] != "text/csv" {
			t.Errorf("%s: status %d, %q, %q; want %q", k, a.Status, kind, a.Body, want)
		}
	}
	if a := s.predict(t, "returning", asJSON, `{"k": "set"}`); a.Status != http.StatusServiceUnavailable || !strings.Contains(string(a.Body), "Unsupported model output data type.") {
		t.Errorf("a set: status %d: %s", a.Status, a.Body)
	}
}

const noisy = `import sys
print("hello from import ✓")
print("|1|1|tcp|127.0.0.1:1|grpc")          # looks like a handshake


class H:
    def initialize(self, ctx):
        print("init")
        sys.stderr.write("warn\n")

    def handle(self, data, ctx):
        print("per request", len(data))
        return ["ok"] * len(data)
`

// TestHandlerThatPrints as it is imported, even what looks like the border's own first line: it loads at the first try, and all of it is in the log.
func TestHandlerThatPrints(t *testing.T) {
	const requests = 50
	box := NewBox(t)
	s := box.serving(t, Options{}, Archive{Name: "noisy", Handler: noisy})
	for range requests {
		if a := s.predict(t, "noisy", asJSON, `{}`); a.Status != http.StatusOK || string(a.Body) != "ok" {
			t.Fatalf("status %d: %s", a.Status, a.Body)
		}
	}
	var count map[string]int
	if !Eventually(startLimit, func() bool {
		text, err := os.ReadFile(filepath.Join(box.Dir, "logs", "model_log.log"))
		if err != nil {
			return false
		}
		count = map[string]int{}
		for line := range strings.Lines(string(text)) {
			for _, what := range []string{"hello from import ✓", "|1|1|tcp|127.0.0.1:1|grpc", "init", "warn", "per request 1"} {
				if strings.HasSuffix(strings.TrimSpace(line), " "+what) && strings.Contains(line, "noisy") {
					count[what]++
				}
			}
		}
		return count["per request 1"] >= requests && len(count) == 5
	}) || count["per request 1"] != requests || count["init"] != 1 || count["warn"] != 1 || count["hello from import ✓"] != 1 || count["|1|1|tcp|127.0.0.1:1|grpc"] != 1 {
		t.Errorf("lines with the model's name in its log: %v; want each once, and %d of the requests", count, requests)
	}
}

const called = `import os

calls = []


def %s(data, ctx):
    calls.append("load" if data is None else "request")
    return [" ".join(calls)] * len(data or [])
`

const helped = `class Cfg:
    pass


class H:
    def initialize(self, ctx):
        self.n = 0

    def handle(self, data, ctx):
        self.n += 1
        return [str(self.n)] * len(data)
`

// TestStylesOfHandlers has a function handle, a function that the manifest names, and a class beside a class that is no handler; two that are handlers do not load.
func TestStylesOfHandlers(t *testing.T) {
	box := NewBox(t)
	box.packWith(t, "function", fmt.Sprintf(called, "handle"), "")
	box.packWith(t, "named", fmt.Sprintf(called, "serve_it"), ":serve_it")
	box.packWith(t, "class", helped, "")
	box.packWith(t, "two", helped+"\n\nclass Second(H):\n    pass\n", "")
	s := box.Start(t, Options{})
	for _, name := range []string{"function", "named", "class"} {
		s.MustAsk(t, http.StatusOK, http.MethodPost, s.Management+"/models?url="+name+".mar&initial_workers=1&synchronous=true", nil)
	}
	for _, tc := range []struct{ model, first, second string }{
		{"function", "load request", "load request request"}, {"named", "load request", "load request request"}, {"class", "1", "2"},
	} {
		for _, want := range []string{tc.first, tc.second} {
			if a := s.predict(t, tc.model, octets, "x"); a.Status != http.StatusOK || string(a.Body) != want {
				t.Errorf("%s: status %d: %s, want %s", tc.model, a.Status, a.Body, want)
			}
		}
	}
	refused := s.MustAsk(t, http.StatusInternalServerError, http.MethodPost, s.Management+"/models?url=two.mar&initial_workers=1&synchronous=true", nil)
	if hint := refused.Header.Get("X-Flambeau-Hint"); !strings.Contains(hint, "H") || !strings.Contains(hint, "Second") {
		t.Errorf("the reason does not name the two classes: %q", hint)
	}
}
