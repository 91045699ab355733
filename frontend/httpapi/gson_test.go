package httpapi

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/flambeau-serve/flambeau/internal/fault"
)

// TestRegistrationJSON holds answers that TorchServe gave.
func TestRegistrationJSON(t *testing.T) {
	syntax := func(what string) string { return gsonMalformed + ": " + what }
	for body, want := range map[string]string{
		`{oops`:      gsonEOF + ": End of input at line 1 column 6 path $.oops",
		`[]`:         gsonState + ": Expected BEGIN_OBJECT but was BEGIN_ARRAY at line 1 column 2 path $",
		`"s"`:        gsonState + ": Expected BEGIN_OBJECT but was STRING at line 1 column 2 path $",
		`5`:          gsonState + ": Expected BEGIN_OBJECT but was NUMBER at line 1 column 2 path $",
		`true`:       gsonState + ": Expected BEGIN_OBJECT but was BOOLEAN at line 1 column 5 path $",
		`abc`:        gsonState + ": Expected BEGIN_OBJECT but was STRING at line 1 column 1 path $",
		`{"url":{}}`: gsonState + ": Expected a string but was BEGIN_OBJECT at line 1 column 9 path $.url",
		`{"url":[]}`: gsonState + ": Expected a string but was BEGIN_ARRAY at line 1 column 9 path $.url",
		`{"url":"kinds.mar","initial_workers":"zero"}`:      gsonNotNumber + `: For input string: "zero"`,
		`{"url":"kinds.mar","initial_workers":1.5}`:         gsonNotNumber + ": Expected an int but was 1.5 at line 1 column 41 path $.initial_workers",
		`{"url":"kinds.mar","initial_workers":true}`:        gsonState + ": Expected an int but was BOOLEAN at line 1 column 42 path $.initial_workers",
		`{"url":"kinds.mar","initial_workers":{}}`:          gsonState + ": Expected an int but was BEGIN_OBJECT at line 1 column 39 path $.initial_workers",
		`{"url":"kinds.mar","initial_workers":99999999999}`: gsonNotNumber + ": Expected an int but was 99999999999 at line 1 column 49 path $.initial_workers",
		`{"url":"kinds.mar","initial_workers":"1.5"}`:       gsonNotNumber + ": Expected an int but was 1.5 at line 1 column 43 path $.initial_workers",
		`{"url":"kinds.mar","initial_workers":""}`:          gsonNotNumber + ": empty String",
		`{"url":"nope.mar","initial_workers":NaN}`:          gsonNotNumber + ": Expected an int but was NaN at line 1 column 40 path $.initial_workers",
		`{"url":"kinds.mar","synchronous":5}`:               gsonState + ": Expected a boolean but was NUMBER at line 1 column 35 path $.synchronous",
		`{"url":"kinds.mar","synchronous":[]}`:              gsonState + ": Expected a boolean but was BEGIN_ARRAY at line 1 column 35 path $.synchronous",
		`{"url":"nope.mar"`:                                 gsonEOF + ": End of input at line 1 column 18 path $.url",
		`{"url":"nope.mar"}}`:                               syntax("Use JsonReader.setLenient(true) to accept malformed JSON at line 1 column 20 path $"),
		`{"url":"nope.mar"} x`:                              syntax("Use JsonReader.setLenient(true) to accept malformed JSON at line 1 column 21 path $"),
		`{"url":"nope.mar",}`:                               syntax("Expected name at line 1 column 20 path $.url"),
		`{"url" "nope.mar"}`:                                syntax("Expected ':' at line 1 column 9 path $.url"),
		`{"url":"nope.mar" "x":1}`:                          syntax("Unterminated object at line 1 column 20 path $.url"),
		`{"url":"nope`:                                      syntax("Unterminated string at line 1 column 13 path $.url"),
		`{"url":`:                                           gsonEOF + ": End of input at line 1 column 8 path $.url",
		`{"url"`:                                            gsonEOF + ": End of input at line 1 column 7 path $.url",
		`{"u`:                                               syntax("Unterminated string at line 1 column 4 path $."),
		`{`:                                                 gsonEOF + ": End of input at line 1 column 2 path $.",
		`{"url":"a\qb"}`:                                    syntax("Invalid escape sequence at line 1 column 12 path $.url"),
		"{\n \"url\": \"a\nb\",\n é":                        gsonEOF + ": End of input at line 4 column 3 path $.é",
		`{"x":[1`:                                           gsonEOF + ": End of input at line 1 column 8 path $.x",
		`{"x":[1 2]}`:                                       syntax("Unterminated array at line 1 column 10 path $.x"),
		`{"x":"\u12"}`:                                      syntax("Unterminated escape sequence at line 1 column 13 path $.x"),
		`{"x":"\`:                                           syntax("Unterminated escape sequence at line 1 column 8 path $.x"),
		`{"x":}`:                                            syntax("Expected value at line 1 column 7 path $.x"),
	} {
		_, err := registrationJSON([]byte(body))
		if !fault.Is(err, fault.BadJSON) || fault.Message(err) != want {
			t.Errorf("%s:\ngot  %v\nwant %s", body, err, want)
		}
	}
	for body, want := range map[string]string{
		`{}`:                                                       "url - workers - sync -",
		`{"url":null,"initial_workers":null}`:                      "url - workers - sync -",
		`{"url":5,"synchronous":null}`:                             "url 5 workers - sync -",
		`{"url":true,"synchronous":"TRUE"}`:                        "url true workers - sync true",
		`{"url":"a","url":"b","URL":"c"}`:                          "url b workers - sync -",
		`{url:nope.mar}`:                                           "url nope.mar workers - sync -",
		`{'url':'no"pe','initial_workers':'7'}`:                    `url no"pe workers 7 sync -`,
		`/*c*/{"url"="a";"synchronous"=>yes}`:                      "url a workers - sync false",
		"\ufeff{} # end":                                           "url - workers - sync -",
		"{ // no\n\"initial_workers\":1e2}":                        "url - workers 100 sync -",
		`{"initial_workers":-0,"x":{"a":[1,2,{"b":null}],"c":{}}}`: "url - workers 0 sync -",
		`{"url":"\u00e9\ud83d\ude00\n\/\'"}`:                       "url é😀\n/' workers - sync -",
		`{"url":nul}`:                                              "url nul workers - sync -",
	} {
		reg, err := registrationJSON([]byte(body))
		if err != nil {
			t.Errorf("%s: %v", body, err)
			continue
		}
		got := fmt.Sprintf("url %v workers %v sync %v", show(reg.url), show(reg.workers), show(reg.synchronous))
		if got != want {
			t.Errorf("%s:\ngot  %s\nwant %s", body, got, want)
		}
	}
	for _, body := range []string{"", " \n", "null"} {
		_, err := registrationJSON([]byte(body))
		var p *problem
		if !errors.As(err, &p) || p.exception != "NullPointerException" || p.status != 500 {
			t.Errorf("%q: %v", body, err)
		}
	}
	if _, err := registrationJSON([]byte(`{"x":` + strings.Repeat("[", 100_000))); !fault.Is(err, fault.BadJSON) {
		t.Errorf("deep nesting: %v", err)
	}
}

func show[T any](p *T) any {
	if p == nil {
		return "-"
	}
	return *p
}

// FuzzGSON compares with the standard library, which accepts less.
func FuzzGSON(f *testing.F) {
	for _, seed := range []string{`{"url":"a","n":1}`, `{a:'b';c=[1,{}]}`, "{\"a\":\"\\ud83d\\ude00\"} // x", `{"a":{"b":[null,true]}}`, "/**/{}", `{"a":1.5e3}`} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		members := map[string]gsonValue{}
		err := gsonObjectOf(text, func(name string, v gsonValue) error {
			members[name] = v
			_, _ = v.asInt()
			_, _ = v.asBool()
			_, _ = v.asString()
			return nil
		})
		var want map[string]json.RawMessage
		if json.Unmarshal(text, &want) != nil || want == nil || strings.Count(string(text), "[")+strings.Count(string(text), "{") > gsonMaxDepth {
			return
		}
		if err != nil {
			t.Fatalf("%q: %v, the standard library reads it", text, err)
		}
		for name, raw := range want {
			var s string
			if json.Unmarshal(raw, &s) == nil && raw[0] == '"' && !strings.Contains(s, "\ufffd") && !strings.Contains(name, "\ufffd") && members[name].text != s {
				t.Fatalf("%q is %q, the standard library reads %q", name, members[name].text, s)
			}
		}
		if len(members) < len(want) && !slices.ContainsFunc(text, func(b byte) bool { return b >= 0x80 }) {
			t.Fatalf("%d members, the standard library reads %d", len(members), len(want))
		}
	})
}
