package source

import (
	"encoding/hex"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestParse(t *testing.T) {
	t.Parallel()
	pin := strings.Repeat("ab", 32)
	type parts struct{ Plain, Scheme, Pin, Host, Base, Key, Shown, Told string }
	tests := map[string]struct {
		want parts
		err  string
	}{
		"http://h/a/x.mar": {want: parts{"http://h/a/x.mar", "http", "", "h", "x.mar", "", "http://h/a/x.mar", "http://h/a/x.mar"}},
		"HTTPS://u:p@h:1/x.mar?q#f": {
			want: parts{"HTTPS://u:p@h:1/x.mar?q#f", "https", "", "h:1", "x.mar", "", "HTTPS://h:1/x.mar?…", "HTTPS://h:1/x.mar?q#f"},
		},
		"http://h/x%20y.mar?version=2": {
			want: parts{"http://h/x%20y.mar?version=2", "http", "", "h", "x%20y.mar", "", "http://h/x%20y.mar?…", "http://h/x%20y.mar?version=2"},
		},
		"https://h/x.mar?sv=1&sig=abc": {
			want: parts{"https://h/x.mar?sv=1&sig=abc", "https", "", "h", "x.mar", "", "https://h/x.mar?…", "https://h/x.mar?sv=1&sig=***"},
		},
		"http://h/x.mar#sha256=" + strings.ToUpper(pin): {want: parts{
			"http://h/x.mar", "http", pin, "h", "x.mar", "", "http://h/x.mar#sha256=" + strings.ToUpper(pin), "http://h/x.mar#sha256=" + strings.ToUpper(pin),
		}},
		"file:///a/x.mar#sha256=" + pin: {want: parts{
			"file:///a/x.mar", "file", pin, "", "x.mar", "", "file:///a/x.mar#sha256=" + pin, "file:///a/x.mar#sha256=" + pin,
		}},
		"s3://bucket/a/b c%20d.mar?region=eu-west-1#sha256=" + pin: {want: parts{
			"s3://bucket/a/b c%20d.mar?region=eu-west-1", "s3", pin, "bucket", "b c%20d.mar", "a/b c%20d.mar", "s3://bucket/a/b c%20d.mar?…#sha256=" + pin,
			"s3://bucket/a/b c%20d.mar?region=eu-west-1#sha256=" + pin,
		}},
		"x.mar":               {err: "it is no URL"},
		"ftp://h/x.mar":       {err: `the scheme "ftp" is not known`},
		"s3://bucket":         {err: "does not name an object"},
		"s3://bucket/dir/":    {err: "does not name an object"},
		"s3:///x.mar":         {err: "does not name a bucket"},
		"s3://a@b/x.mar":      {err: "does not name a bucket"},
		"s3://a:80/x.mar":     {err: "does not name a bucket"},
		"s3://../x.mar":       {err: "does not name a bucket"},
		"s3://b/x.mar?%zz=1":  {err: "the parameters of the URL cannot be read"},
		"http://h/\x00x.mar":  {err: "it cannot be read as a URL: net/url: invalid control character in URL"},
		"http://h/x.mar#sha1": {err: "no digest of the form"},
	}
	for raw, tt := range tests {
		a, err := parse(raw)
		if tt.err != "" {
			if err == nil || !strings.Contains(err.Error(), tt.err) {
				t.Errorf("%q: %v, want %s", raw, err, tt.err)
			}
			continue
		}
		if err != nil {
			t.Errorf("%q: %v", raw, err)
			continue
		}
		if diff := cmp.Diff(tt.want, parts{a.plain, a.scheme, a.pin, a.host, a.base, a.key, a.shown(), a.told()}); diff != "" {
			t.Errorf("%q: %s", raw, diff)
		}
	}
}

func FuzzParse(f *testing.F) {
	pin := strings.Repeat("0f", 32)
	for _, seed := range []string{
		"http://h/x.mar", "https://u:p@h:8443/a/x.mar?sig=1#sha256=" + pin, "file:///x.mar#sha256=" + pin, "s3://bucket/key?endpoint=http://h:1&region=x#sha256=" + pin,
		"gs://b/k", "azblob://c/k", "HTTP://H", "://", "#sha256=", "http://h/x#sha256:" + pin, `http://h\x.mar`, "s3://b/k#f#sha256=" + pin, "http://[::1%25eth0]:80/x.mar",
		"http://h?@/x.mar", "http://a@b@c/x", "x.mar",
	} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, raw string) {
		a, err := parse(raw)
		if a == nil {
			t.Fatal("no address")
		}
		if a.raw != raw || !strings.HasPrefix(raw, a.plain) {
			t.Errorf("plain %q of %q", a.plain, raw)
		}
		if digest, bad := hex.DecodeString(a.pin); bad != nil || len(digest) != 0 && len(digest) != 32 || a.pin != strings.ToLower(a.pin) {
			t.Errorf("pin %q", a.pin)
		}
		if fragment := strings.TrimPrefix(raw, a.plain); err == nil && a.pin == "" && fragment != "" {
			t.Errorf("%q was left off without a pin", fragment)
		}
		if strings.ContainsAny(a.base, "/\\?#") {
			t.Errorf("base %q", a.base)
		}
		if err != nil {
			return
		}
		if a.isObject() && (!isBucket(a.host) || a.key == "" || strings.Contains(a.key, "?")) {
			t.Errorf("bucket %q, key %q", a.host, a.key)
		}
		for _, text := range []string{a.shown(), a.told()} {
			if rest, query, found := strings.Cut(before(text, "#"), "?"); found && text == a.shown() && query != hidden {
				t.Errorf("%q shows the query of %q", rest, raw)
			}
			_, rest, _ := strings.Cut(text, "://")
			rest, _, _ = strings.Cut(rest, "#")
			rest, _, _ = strings.Cut(rest, "?")
			if authority, _, _ := strings.Cut(rest, "/"); strings.Contains(authority, "@") {
				t.Errorf("%q shows the user of %q", text, raw)
			}
		}
	})
}

func before(text, mark string) string {
	text, _, _ = strings.Cut(text, mark)
	return text
}
