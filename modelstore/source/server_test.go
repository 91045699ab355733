package source

import (
	"bytes"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/flambeau-serve/flambeau/internal/fault"
)

// objectServer is a real server of an object store, as a process of its own.
type objectServer struct {
	binary, address string
	args            []string

	mu      sync.Mutex // guards command
	command *exec.Cmd
}

// newObjectServer builds the server that a folder of tools pins. It is started by start, with arguments that are set until then.
func newObjectServer(t *testing.T, tool, program string) *objectServer {
	t.Helper()
	if testing.Short() {
		t.Skip("it builds and starts a server")
	}
	s := &objectServer{binary: filepath.Join(t.TempDir(), "server")}
	build := exec.CommandContext(t.Context(), "go", "build", "-modfile=tools/"+tool+"/go.mod", "-o", s.binary, program) //nolint:gosec // the test's own words
	build.Dir = filepath.Join("..", "..")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("the server of tools/%s cannot be built: %v\n%s", tool, err, out)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s.address = l.Addr().String()
	_ = l.Close()
	t.Cleanup(s.kill)
	return s
}

func (s *objectServer) start(t testing.TB) {
	t.Helper()
	command := exec.Command(s.binary, s.args...) //nolint:noctx,gosec // it lives until kill
	var out bytes.Buffer
	command.Stdout, command.Stderr = &out, &out
	if err := command.Start(); err != nil {
		t.Fatal(err)
	}
	s.mu.Lock()
	s.command = command
	s.mu.Unlock()
	defer func() {
		if t.Failed() {
			s.kill()
			t.Logf("the server says: %s", out.String())
		}
	}()
	await(t, func() bool {
		c, err := net.DialTimeout("tcp", s.address, time.Second)
		if err == nil {
			_ = c.Close()
		}
		return err == nil
	})
}

// kill ends the server as a crash does.
func (s *objectServer) kill() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.command == nil {
		return
	}
	_ = s.command.Process.Kill()
	_ = s.command.Wait()
	s.command = nil
}

// fetchCase is one fetch from an object store, and what comes of it.
type fetchCase struct {
	url    string
	env    [2]string // a variable and its value
	change func(*Options)
	want   []byte
	kind   fault.Kind
	cause  string // "": it works
}

func (c *fetchCase) run(t *testing.T) {
	t.Helper()
	if c.env[0] != "" {
		t.Setenv(c.env[0], c.env[1])
	}
	b := newBench(t, c.change)
	got, err := b.get(t, c.url)
	if c.cause == "" {
		if err != nil || !bytes.Equal(got, c.want) {
			t.Errorf("%d bytes, %v", len(got), err)
		}
		return
	}
	message := failedFrom(c.url)
	switch {
	case c.cause == "allowed_urls":
		message = "Given URL " + c.url + " does not match any allowed URL(s)"
	case c.kind == fault.ModelNotFound:
		message = "Model not found at: " + c.url
	}
	refused(t, err, c.kind, message, c.cause)
	if text := fmt.Sprint(err, b.log); strings.Contains(text, secretKey) || strings.Contains(text, "Signature=") {
		t.Errorf("a secret is told: %s", text)
	}
}

// crashes kills the server in the middle of fetches: the object is still the same one then, another one, or gone.
func crashes(t *testing.T, server *objectServer, bucket string, put func(key string, data []byte), remove func(key string)) {
	t.Helper()
	large, changed := content(64<<20, 2), content(48<<20, 3)
	t.Run("a crash in the middle", func(t *testing.T) { crash(t, server, bucket+"deep/large.mar", large, nil) })
	t.Run("a crash and another object", func(t *testing.T) {
		crash(t, server, bucket+"deep/large.mar", changed, func() { put("deep/large.mar", changed) })
	})
	put("gone.mar", large)
	t.Run("a crash and no object", func(t *testing.T) { crash(t, server, bucket+"gone.mar", nil, func() { remove("gone.mar") }) })
}

// crash kills the server in the middle of a fetch, starts it again, and looks at what came. between is called when it is there again, before the fetch goes on.
func crash(t *testing.T, server *objectServer, url string, want []byte, between func()) {
	t.Helper()
	b := newBench(t, func(o *Options) { o.Pause = 50 * time.Millisecond })
	var once sync.Once
	var at, least atomic.Int64
	path, n, _, err := b.Fetch(t.Context(), url, b.dir, func(done, _ int64) {
		if done < 20<<20 {
			if at.Load() > 0 {
				least.Store(1)
			}
			return
		}
		once.Do(func() {
			server.kill()
			at.Store(done)
			server.start(t)
			if between != nil {
				between()
			}
		})
	})
	if want == nil {
		refused(t, err, fault.ModelNotFound, "Model not found at: "+url, "the object store answered")
		return
	}
	if err != nil {
		t.Fatal(err)
	}
	got, err := os.ReadFile(path)
	if err != nil || int(n) != len(want) || !bytes.Equal(got, want) {
		t.Errorf("%d bytes, %v", len(got), err)
	}
	if again := strings.Contains(b.log.String(), "begins again"); again != (between != nil) || (least.Load() > 0) != again {
		t.Errorf("it began again: %v\n%s", again, b.log)
	}
	if !strings.Contains(b.log.String(), "a download was broken off and is tried again") {
		t.Errorf("it was not broken off:\n%s", b.log)
	}
}
