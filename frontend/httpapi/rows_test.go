package httpapi

import (
	"bytes"
	"fmt"
	"io"
	"mime/multipart"
	"net/url"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"

	"github.com/flambeau-serve/flambeau/internal/fault"
	"github.com/flambeau-serve/flambeau/internal/infer"
)

// shown is a row on one line: name(type)=value.
func shown(parts []infer.Part, err error) string {
	if err != nil {
		return fmt.Sprintf("%s: %s", fault.KindOf(err), fault.Message(err))
	}
	var all []string
	for _, p := range parts {
		text := p.Name
		if p.ContentType != "" {
			text += "(" + p.ContentType + ")"
		}
		all = append(all, fmt.Sprintf("%s=%q", text, p.Data))
	}
	return strings.Join(all, " ")
}

// part is one part of a form with the boundary b.
func part(disposition, body string, header ...string) string {
	return "--b\r\nContent-Disposition: " + disposition + "\r\n" + strings.Join(append(header, ""), "\r\n") + "\r\n" + body + "\r\n"
}

const end = "--b--\r\n"

func TestMultipart(t *testing.T) {
	a := part(`form-data; name="a"`, "v")
	noName := "bad_form: " + namelessPart
	for _, tc := range []struct{ body, want string }{
		{a + end, `a="v"`},
		{part(`form-data; name=a`, "v") + end, `a="v"`},
		{part(`form-data; name='a'`, "v") + end, `'a'="v"`},
		{part(`form-data; name="a\"b"`, "v") + end, `a\b="v"`},
		{part(`form-data; name="a%20b"`, "v") + end, `a%20b="v"`},
		{part(`form-data; name="a;b=c"`, "v") + end, `a b c="v"`},
		{part(`form-data; name=" a "`, "v") + end, `a="v"`},
		{part("form-data; name=\"d a/t\xc3\xa9\xff\"", "v") + end, "d a/té\ufffd=\"v\""},
		{part(`form-data; name=""`, "v") + end, "bad_form: java.lang.IllegalArgumentException: empty name"},
		{part(`form-data; Name="a"; FileName="f"`, "v", "Content-Type: text/plain; charset=x") + end, `a(text/plain)="v"`},
		{part(`form-data;name="a";filename="a;b"`, "v", "content-type: Application/JSON") + end, `a(Application/JSON)="v"`},
		{part(`form-data; name="a"; filename*=UTF-8''%e2`, "v", "Content-Type:") + end, `a="v"`},
		{part(`form-data; name="a"`, "v", "Content-Type: application/json") + end, `a="v"`},
		{part(`form-data; filename="f"`, "v") + end, noName},
		{part(`form-data`, "v") + end, noName},
		{part(`attachment; name="a"`, "v") + end, noName},
		{a + "--b\r\nX: y\r\n\r\nz\r\n" + end, noName},
		{"--b\r\n\r\nz\r\n" + end, noName},
		{part(`form-data; name="a"; filename="f"`, "aGk=", "Content-Transfer-Encoding: base64") + end, "bad_form: TransferEncoding Unknown: base64"},
		{part(`form-data; name="a"; filename="f"`, "v", "Content-Transfer-Encoding: BINARY") + end, `a="v"`},
		{part(`form-data; name="a"`, "aGk=", "Content-Transfer-Encoding: base64") + end, `a="aGk="`},
		{part(`form-data; name="a"`, "") + end, `a=""`},
		{part(`form-data; name="a"`, "\x00\xff\r\n\r\n--c\r\n") + end, `a="\x00\xff\r\n\r\n--c\r\n"`},
		{part(`form-data; name="a"`, "x--b--\r\n --b\r\n--bc") + end, `a="x--b--\r\n --b\r\n--bc"`},
		{a + part(`form-data; name="a"`, "w") + part(`form-data; name="c"`, "x") + end, `a="v" a="w" c="x"`},
		{strings.ReplaceAll(a+end, "\r\n", "\n"), `a="v"`},
		{"\r\n" + a + end, `a="v"`},
		{"preamble\r\n" + a + end, ""},
		{a + end + "epilogue", `a="v"`},
		{a + "--b--", `a="v"`},
		{a, ""},
		{a + part(`form-data; name="c"`, "x"), `a="v"`},
		{a + part(`form-data; name="c"`, "x")[:20], `a="v"`},
		{a + "--b\r\nContent-Disposition: form-data; name=\"c\"\r\n\r\n", `a="v"`},
		{"", ""},
		{end, ""},
		{"garbage", ""},
		{"--c\r\n\r\nx\r\n--c--\r\n", ""},
		{
			part(`form-data; name="m"`, "--c\r\nContent-Disposition: file; filename=\"1\"\r\nContent-Type: text/plain\r\n\r\nF1\r\n--c\r\n\r\nF2\r\n--c--",
				"Content-Type: multipart/mixed; boundary=c") + end, `m(text/plain)="F1" m="F2"`,
		},
	} {
		if got := shown(parseMultipart([]byte(tc.body), "b")); got != tc.want {
			t.Errorf("%q:\ngot  %s\nwant %s", tc.body, got, tc.want)
		}
	}
}

func TestMultipartBounds(t *testing.T) {
	many := strings.Repeat(part(`form-data; name="a"`, ""), mostParts+1) + end
	if _, err := parseMultipart([]byte(many), "b"); !fault.Is(err, fault.BadForm) {
		t.Errorf("no end of parts: %v", err)
	}
	if parts, err := parseMultipart([]byte("--\r\n\r\nx\r\n--\r\n"), ""); len(parts) != 0 || err != nil {
		t.Errorf("empty boundary: %v %v", parts, err)
	}
}

func TestBoundary(t *testing.T) {
	for kind, want := range map[string]string{
		"multipart/form-data; boundary=b": "b", `multipart/form-data; boundary="b c"`: "b c", "multipart/form-data;BOUNDARY=b": "b",
		"multipart/form-data; charset=utf-8; boundary=b; x=y": "b", "multipart/form-data; boundary =b": "b", "multipart/form-data; boundary='b'": "'b'",
		"multipart/form-data": "-", "multipart/form-data; x=y": "-", "Multipart/Form-Data; boundary=b": "-", "multipart/mixed; boundary=b": "-", "": "-",
	} {
		got, ok := boundaryOf(kind)
		if !ok {
			got = "-"
		}
		if got != want {
			t.Errorf("%s: got %q, want %q", kind, got, want)
		}
	}
}

func TestForm(t *testing.T) {
	empty := "bad_form: java.lang.IllegalArgumentException: empty name"
	for body, want := range map[string]string{
		"": "", "abc": "", "a=1": `a="1"`, "a=1&": `a="1"`, "a=": `a=""`, "a=&x": `a=""`, "a&b=1": `a="" b="1"`, "a=1&b&c=2": `a="1" b="" c="2"`, "x&": `x=""`,
		"a=1&a=2": `a="1" a="2"`, "a=1=2": `a="1=2"`, "a=1;b=2": `a="1;b=2"`, "&a=1": empty, "a=1&&b=2": empty, "=1": empty, "=": empty, "%20=1": empty,
		"a+b=c+d": `a b="c d"`, "%3D=%26%2b": `=="&+"`, "\xc3\xa9=\xc3\xa9": "é=\"é\"", "a=%C3%ff%00": `a="\xc3\xff\x00"`, "%ff=1": "\ufffd=\"1\"",
		"a=1\r\n": `a="1"`, "\r\na=1\nb=2": `a="1"`, "a=%": "bad_form: Invalid hex byte at index '0' in string: '%'", "a=x%4": "bad_form: Invalid hex byte at index '1' in string: 'x%4'",
		"a=%zz": "bad_form: Invalid hex byte at index '0' in string: '%zz'", "%zz=1": "bad_form: Bad string: '%zz'", `{"a":"x=y"}`: `{"a":"x="y\"}"`,
	} {
		if got := shown(parseForm([]byte(body))); got != want {
			t.Errorf("%q:\ngot  %s\nwant %s", body, got, want)
		}
	}
}

func TestRows(t *testing.T) {
	f := serve(t)
	form := part(`form-data; name="a"`, "v") + end
	for _, tc := range []struct{ target, kind, body, want string }{
		{"/predictions/echo?q=1", "", "x", `body="x"`},
		{"/predictions/echo", "text/plain; charset=x", "x", `body(text/plain)="x"`},
		{"/predictions/echo", "application/json ;x", "{}", `body(application/json )="{}"`},
		{"/predictions/echo", ";", "", `body=""`},
		{"/predictions/echo", "multipart/form-data; boundary=b", form, `a="v"`},
		{"/predictions/echo", "multipart/form-data", "x", `body(multipart/form-data)="x"`},
		{"/predictions/echo", "multipart/mixed; boundary=b", "x", `body(multipart/mixed)="x"`},
		{"/predictions/echo", "Application/X-WWW-Form-Urlencoded; x", "a=1", `a="1"`},
		{"/predictions/echo", "application/x-www-form-urlencoded ; x", "a=1", `body(application/x-www-form-urlencoded )="a=1"`},
		{"/echo/predict?q=1;q=2&%C3%A9=a+b", "", "x", `q="1" q="2" é="a b" body="x"`},
		{"/echo/1.0/predict?q=1#z", "", "x", `q="1" body="x"`},
		{"/models/echo/invoke?a=1", "application/x-www-form-urlencoded", "a=2", `a="1" a="2"`},
		{"/v1/models/echo:predict?q=1", "", "x", `body="x"`},
		{"/v2/models/echo/infer?q=1", "", "x", `body="x"`},
		{"/invocations", "", "x", `body="x"`},
	} {
		r := do(t, f.addr[Inference], "POST", tc.target, tc.body, "Content-Type: "+tc.kind)
		if r.status != 200 {
			t.Errorf("%s %s: %+v", tc.target, tc.kind, r)
		} else if got := shown(f.last(t).Parts, nil); got != tc.want {
			t.Errorf("%s %s:\ngot  %s\nwant %s", tc.target, tc.kind, got, tc.want)
		}
	}
	for _, tc := range []struct{ target, kind, body, want string }{
		{"/predictions/nomodel", "multipart/form-data; boundary=b", part("form-data", "v") + end, `"type": "ErrorDataDecoderException"`},
		{"/models/echo/invoke?x=%z", "", "", `"message": "unterminated escape sequence at index 22 of: /models/echo/invoke?x=%z"`},
	} {
		if r := do(t, f.addr[Inference], "POST", tc.target, tc.body, "Content-Type: "+tc.kind); !strings.Contains(r.body, tc.want) {
			t.Errorf("%s: %+v", tc.target, r)
		}
	}
}

// FuzzMultipart compares with the standard library where that accepts a body of plain parts, and looks for panics everywhere.
func FuzzMultipart(f *testing.F) {
	f.Add([]byte(part(`form-data; name="a"`, "v")+end), "b")
	f.Add([]byte(part(`form-data; name="a"; filename="f"`, "\r\n--b\r\n", "Content-Type: text/plain")+end), "b")
	f.Add([]byte("--b\nContent-Disposition: form-data; name=a\n\nx\n--b--"), "b")
	f.Fuzz(func(t *testing.T, body []byte, boundary string) {
		parts, err := parseMultipart(body, boundary)
		size := 0
		for _, p := range parts {
			size += len(p.Data)
			if !utf8.ValidString(p.Name) || p.Name == "" {
				t.Fatalf("name %q", p.Name)
			}
		}
		if size > len(body) {
			t.Fatalf("%d bytes became %d", len(body), size)
		}
		if err != nil || !bytes.HasPrefix(body, []byte("--"+boundary+"\r\n")) || bytes.Contains(body, []byte("multipart/mixed")) {
			return
		}
		reader := multipart.NewReader(bytes.NewReader(body), boundary)
		for i := 0; ; i++ {
			p, err := reader.NextRawPart()
			if err != nil {
				return
			}
			data, err := io.ReadAll(p)
			if err != nil {
				return
			}
			if i >= len(parts) || !bytes.Equal(parts[i].Data, data) {
				t.Fatalf("part %d is %q, the standard library reads %q", i, parts[min(i, len(parts)-1)].Data, data)
			}
		}
	})
}

// FuzzForm writes a form with the standard library and reads it back, and looks for panics in anything else.
func FuzzForm(f *testing.F) {
	f.Add("a", "v w&=%", []byte("a=1&b=%20"))
	f.Fuzz(func(t *testing.T, name, value string, raw []byte) {
		_, _ = parseForm(raw)
		if strings.TrimSpace(name) != name || name == "" || !utf8.ValidString(name) {
			return
		}
		parts, err := parseForm([]byte(url.Values{name: {value}}.Encode()))
		if diff := cmp.Diff([]infer.Part{{Name: name, Data: []byte(value)}}, parts); err != nil || diff != "" {
			t.Fatalf("%v %s", err, diff)
		}
	})
}
