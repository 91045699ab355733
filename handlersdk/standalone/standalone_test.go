package standalone

import (
	"bytes"
	"context"
	"io"
	"net/http"
	"regexp"
	"strings"
	"sync"
	"testing"

	"go.uber.org/goleak"

	"github.com/flambeau-serve/flambeau/handlersdk/pluginserver"
	backendv1 "github.com/flambeau-serve/flambeau/proto/backend/v1"
	"github.com/flambeau-serve/flambeau/proto/backend/v1/frame"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestParse(t *testing.T) {
	t.Parallel()
	for line, want := range map[string]Options{
		"":                              {Port: 9999},
		"--standalone":                  {Port: 9999},
		"--standalone --dir a --port 5": {Dir: "a", Port: 5},
		"-v --level=3 --port=0 --name=n --dir=b --standalone x": {Dir: "b", Name: "n"},
	} {
		got, asked, err := Parse(strings.Fields(line))
		if err != nil || asked != strings.Contains(line, Flag) || got != want {
			t.Errorf("%q: %+v, %t, %v", line, got, asked, err)
		}
	}
	for _, line := range []string{"--standalone --port x", "--standalone --port -1", "--standalone --dir"} {
		if _, _, err := Parse(strings.Fields(line)); err == nil || !strings.Contains(err.Error(), "--") {
			t.Errorf("%q: %v", line, err)
		}
	}
}

// backend answers with what it got: the parts with their names, in two pieces.
type backend struct {
	failure  *backendv1.LoadFailure
	dir      string
	unloaded int
}

func (b *backend) Load(_ context.Context, req *backendv1.LoadRequest) (*backendv1.LoadResponse, error) {
	b.dir = req.GetModelDir()
	return &backendv1.LoadResponse{Failure: b.failure}, nil
}

func (b *backend) Unload(context.Context) error { b.unloaded++; return nil }

func (b *backend) Run(_ context.Context, batch []byte, give pluginserver.Give) error {
	head, items, err := frame.DecodeBatch(batch)
	if err != nil {
		return err
	}
	text := ""
	var textSb62 strings.Builder
	for _, p := range items[0].Parts {
		textSb62.WriteString(p.Name + "=" + string(p.Data) + ";")
	}
	text += textSb62.String()
	if text == "body=fail;" {
		return give(true, frame.EncodeResults(frame.KindResults, head.BatchID, []frame.Result{{Status: 418, Failure: &frame.Failure{Message: "no coffee", Detail: "the stack"}}}))
	}
	piece := []frame.Result{{Status: 201, Header: []frame.Field{{Name: "x-mine", Value: "1"}}, Body: []byte(text)}}
	if err := give(false, frame.EncodeResults(frame.KindPiece, head.BatchID, piece)); err != nil {
		return err
	}
	return give(true, frame.EncodeResults(frame.KindResults, head.BatchID, []frame.Result{{Body: []byte("end")}}))
}

// told keeps what is said, and tells of the address.
type told struct {
	mu      sync.Mutex // guards text
	text    bytes.Buffer
	address chan string
}

var address = regexp.MustCompile(`http://[\d.:]+`)

func (w *told) Write(b []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if at := address.Find(b); at != nil {
		w.address <- string(at)
	}
	return w.text.Write(b)
}

func TestServe(t *testing.T) {
	dir := t.TempDir()
	t.Chdir(dir) // so that the test's end goes back
	b, out := &backend{}, &told{address: make(chan string, 1)}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- Serve(ctx, Options{Backend: b, Dir: dir, Name: "m", Output: out}) }()
	at := <-out.address
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	for _, c := range []struct {
		path, kind, body string
		status           int
		want             string
	}{
		{"/predictions/m", "text/plain", "hello", 201, "body=hello;end"},
		{"/predictions", "", "x", 201, "body=x;end"},
		{"/predictions/m", "", "fail", 418, "no coffee"},
		{"/predictions/m", "multipart/form-data; boundary=B", "--B\r\nContent-Disposition: form-data; name=\"a\"\r\n\r\n1\r\n--B--\r\n", 201, "a=1;end"},
		{"/predictions/m", "multipart/form-data; boundary=B", "--B\r\nnothing", 400, "BadRequest"},
		{"/nope", "", "", 404, "there is POST /predictions/m, and not POST /nope"},
	} {
		req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, at+c.path, strings.NewReader(c.body))
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("Content-Type", c.kind)
		resp, err := client.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		got, err := io.ReadAll(resp.Body)
		_ = resp.Body.Close()
		if err != nil || resp.StatusCode != c.status || !strings.Contains(string(got), c.want) || c.status == 201 && resp.Header.Get("X-Mine") != "1" {
			t.Errorf("%s %q: %d %s, %v", c.path, c.body, resp.StatusCode, got, err)
		}
	}
	cancel()
	if err := <-ended; err != nil || b.unloaded != 1 || b.dir != dir {
		t.Errorf("%v, unloaded %d times, loaded from %s", err, b.unloaded, b.dir)
	}
	if !strings.Contains(out.text.String(), "the stack") {
		t.Errorf("the details are not told: %s", out.text.String())
	}
}

func TestServeFails(t *testing.T) {
	b := &backend{failure: &backendv1.LoadFailure{Message: "no weights"}}
	if err := Serve(t.Context(), Options{Backend: b, Dir: ".", Output: io.Discard}); err == nil || !strings.Contains(err.Error(), "no weights") {
		t.Error(err)
	}
	if err := Serve(t.Context(), Options{Backend: b, Dir: "/nonexistent", Output: io.Discard}); err == nil {
		t.Error("a folder that is not there")
	}
}
