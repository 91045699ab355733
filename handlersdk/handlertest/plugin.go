// Package handlertest tests backends from the outside: it starts a plugin's program as the server does, and speaks the server's side of the border.
package handlertest

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/types/known/emptypb"

	"github.com/flambeau-serve/flambeau/handlersdk"
	backendv1 "github.com/flambeau-serve/flambeau/proto/backend/v1"
	"github.com/flambeau-serve/flambeau/proto/backend/v1/frame"
)

// Options say how a plugin is started and what it is asked. All may be left out but Sample.
type Options struct {
	Dir  string // the model's folder; "": an empty one
	Args []string
	Env  []string // beside PATH and HOME

	Sample    handlersdk.Item  // a request that is answered well
	Refused   *handlersdk.Item // one that is answered with an error; nil: not tried
	Panics    *handlersdk.Item // one that the handler panics on, which no handler should have; nil: not tried
	Miscounts *handlersdk.Item // one for which the handler gives a wrong number of results; nil: not tried

	Model string        // its name; "": the folder's
	Batch int           // largest batch; 0: 4
	Limit time.Duration // for each step; 0: 30 seconds

	versions string // of the protocol that the server speaks; "": this one
	earliest bool   // the server sends what the first one sent
}

const (
	messageLimit = 64 << 20
	usualLimit   = 30 * time.Second
	usualBatch   = 4
)

// Plugin is a plugin's process, as the server has it. It is killed at the end of the test.
type Plugin struct {
	t    testing.TB
	opts Options
	cmd  *exec.Cmd
	conn *grpc.ClientConn
	rpc  backendv1.BackendClient

	lifeline  *os.File
	handshake io.Reader // what follows the handshake's line
	output    *output
	exited    chan struct{} // closed once the process is reaped

	stream grpc.BidiStreamingClient[backendv1.Frame, backendv1.Frame]
	last   uint64 // batch id
}

// Result is one answer.
type Result struct {
	Status  int
	Header  []handlersdk.Field
	Body    []byte
	Failure *Failure // nil when it was answered well
	Pieces  [][]byte // bodies of the pieces before it
}

// Failure is why a request failed.
type Failure struct{ Reason, Message, Detail string }

// Body makes a request of a body.
func Body(contentType string, data []byte) handlersdk.Item {
	return handlersdk.Item{Parts: []handlersdk.Part{{Name: "body", ContentType: contentType, Data: data}}}
}

// output keeps what a process writes.
type output struct {
	mu   sync.Mutex // guards text
	text bytes.Buffer
}

func (o *output) Write(b []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.text.Write(b)
}

func (o *output) String() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.text.String()
}

// Start starts the program at path, and fails the test if it does not do its handshake.
func Start(t testing.TB, path string, opts Options) *Plugin {
	t.Helper()
	if opts.Limit == 0 {
		opts.Limit = usualLimit
	}
	if opts.Batch == 0 {
		opts.Batch = usualBatch
	}
	if opts.Dir == "" {
		opts.Dir = t.TempDir()
	}
	p := &Plugin{t: t, opts: opts, output: &output{}, exited: make(chan struct{})}
	path, err := filepath.Abs(path)
	if err == nil {
		err = p.launch(path)
	}
	if err != nil {
		t.Fatalf("%s cannot be started: %v\n%s", path, err, p.output)
	}
	return p
}

// launch starts the process with the descriptors that the server gives.
func (p *Plugin) launch(path string) error {
	sockets, err := os.MkdirTemp("", "fl") // short, for a socket
	if err != nil {
		return err
	}
	p.t.Cleanup(func() { _ = os.RemoveAll(sockets) })
	handshake, handshakeEnd, err := os.Pipe()
	if err != nil {
		return err
	}
	lifelineEnd, lifeline, err := os.Pipe()
	if err != nil {
		return err
	}
	logs, logsEnd, err := os.Pipe()
	if err != nil {
		return err
	}
	p.lifeline = lifeline
	versions := p.opts.versions
	if versions == "" {
		versions = strconv.Itoa(backendv1.ProtocolVersion)
	}
	p.cmd = &exec.Cmd{
		Path: path, Args: append([]string{path}, p.opts.Args...), Dir: p.opts.Dir, Stdout: handshakeEnd, Stderr: logsEnd,
		ExtraFiles: []*os.File{lifelineEnd, logsEnd}, SysProcAttr: &syscall.SysProcAttr{Setpgid: true},
		Env: append([]string{
			"PATH=" + os.Getenv("PATH"), "HOME=" + os.Getenv("HOME"), backendv1.CookieKey + "=" + backendv1.CookieValue,
			backendv1.EnvMaxMessageBytes + "=" + strconv.Itoa(messageLimit), backendv1.EnvProtocolVersions + "=" + versions,
			backendv1.EnvSocketDir + "=" + sockets,
		}, p.opts.Env...),
	}
	err = p.cmd.Start()
	for _, f := range []*os.File{handshakeEnd, lifelineEnd, logsEnd} {
		_ = f.Close() // the child has its own
	}
	if err != nil {
		return err
	}
	go func() {
		_, _ = io.Copy(p.output, logs) // until the last writer is gone
		_ = logs.Close()
	}()
	go func() {
		_ = p.cmd.Wait() // how it ended is in ProcessState
		close(p.exited)
	}()
	p.t.Cleanup(p.end)
	return p.connect(handshake)
}

func (p *Plugin) connect(handshake *os.File) error {
	p.t.Cleanup(func() { _ = handshake.Close() })
	if err := handshake.SetReadDeadline(time.Now().Add(p.opts.Limit)); err != nil {
		return err
	}
	r := bufio.NewReader(handshake)
	line, err := r.ReadString('\n')
	if err != nil {
		return fmt.Errorf("it gave no handshake: %w; it began with %q", err, line)
	}
	p.handshake = r
	const fields = 5
	parts := strings.Split(strings.TrimSpace(line), "|")
	want := fmt.Sprintf("1|%d|unix", backendv1.ProtocolVersion)
	if len(parts) < fields || strings.Join(parts[:3], "|") != want || parts[4] != "grpc" {
		return fmt.Errorf("its handshake is %q, and has to be %s|SOCKET|grpc: nothing may be printed before that (in Go, call handlersdk.Serve first thing in main)", line, want)
	}
	p.conn, err = grpc.NewClient("unix:"+parts[3], grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(messageLimit), grpc.MaxCallSendMsgSize(messageLimit)))
	if err != nil {
		return err
	}
	p.t.Cleanup(func() { _ = p.conn.Close() })
	p.rpc = backendv1.NewBackendClient(p.conn)
	ctx, cancel := p.limited()
	defer cancel()
	health, err := grpc_health_v1.NewHealthClient(p.conn).Check(ctx, &grpc_health_v1.HealthCheckRequest{Service: "plugin"}, grpc.WaitForReady(true))
	if err != nil || health.GetStatus() != grpc_health_v1.HealthCheckResponse_SERVING {
		return fmt.Errorf("the health service says %v for plugin: %w", health.GetStatus(), err)
	}
	return nil
}

func (p *Plugin) limited() (context.Context, context.CancelFunc) {
	return context.WithTimeout(context.WithoutCancel(p.t.Context()), p.opts.Limit)
}

// end kills what is left of the process and its children.
func (p *Plugin) end() {
	_ = p.lifeline.Close()                                // it may be closed already
	_ = syscall.Kill(-p.cmd.Process.Pid, syscall.SIGKILL) // it may be gone already
	<-p.exited
}

// PID is the process's number.
func (p *Plugin) PID() int { return p.cmd.Process.Pid }

// Output is what it has written to standard output and standard error so far, markers included.
func (p *Plugin) Output() string { return p.output.String() }

// Exited is closed once the process is gone.
func (p *Plugin) Exited() <-chan struct{} { return p.exited }

// Load hands the model over, and gives the failure if there is one.
func (p *Plugin) Load() (*backendv1.LoadResponse, error) {
	ctx, cancel := p.limited()
	defer cancel()
	name := p.opts.Model
	if name == "" {
		name = filepath.Base(p.opts.Dir)
	}
	req := &backendv1.LoadRequest{
		ModelName: name, ModelVersion: "1.0", ModelDir: p.opts.Dir, BatchSize: int32(p.opts.Batch), MaxResponseBytes: messageLimit / 2,
	}
	if p.opts.earliest {
		return p.rpc.Load(ctx, &backendv1.LoadRequest{ModelName: name, ModelDir: p.opts.Dir})
	}
	// A field that no version has: servers of later versions send some that a plugin does not know.
	const none = 1000
	req.ProtoReflect().SetUnknown(protowire.AppendString(protowire.AppendTag(nil, none, protowire.BytesType), "later"))
	return p.rpc.Load(ctx, req)
}

// MustLoad is Load, and fails the test if the model does not load. It opens the stream.
func (p *Plugin) MustLoad() *backendv1.LoadResponse {
	p.t.Helper()
	resp, err := p.Load()
	if err != nil || resp.GetFailure() != nil {
		p.t.Fatalf("the model does not load: %v, %v\n%s", resp.GetFailure(), err, p.output)
	}
	p.stream, err = p.rpc.Execute(context.WithoutCancel(p.t.Context()), grpc.ForceCodecV2(frame.Codec{}))
	if err != nil {
		p.t.Fatal(err)
	}
	return resp
}

// Ask runs a batch and waits for its results.
func (p *Plugin) Ask(items ...handlersdk.Item) ([]Result, error) {
	id, err := p.send(items)
	if err != nil {
		return nil, err
	}
	return p.receive(id, len(items))
}

// MustAsk is Ask, and fails the test if the batch as a whole is not answered.
func (p *Plugin) MustAsk(items ...handlersdk.Item) []Result {
	p.t.Helper()
	results, err := p.Ask(items...)
	if err != nil {
		p.t.Fatalf("no answer: %v\n%s", err, p.output)
	}
	return results
}

func (p *Plugin) send(items []handlersdk.Item) (uint64, error) {
	p.last++
	out := make([]frame.Item, len(items))
	for i := range items {
		it := &items[i]
		out[i].ID = it.ID
		if it.ID == "" {
			out[i].ID = fmt.Sprintf("%d-%d", p.last, i)
		}
		if !it.Deadline.IsZero() {
			out[i].Deadline = it.Deadline.UnixNano()
		}
		for _, h := range it.Header {
			out[i].Header = append(out[i].Header, frame.Field(h))
		}
		for _, part := range it.Parts {
			out[i].Parts = append(out[i].Parts, frame.Part(part))
		}
	}
	return p.last, p.stream.SendMsg(frame.EncodeBatch(p.last, out))
}

// receive reads until the results of a batch are there. Answers to other batches are dropped.
func (p *Plugin) receive(id uint64, items int) ([]Result, error) {
	late := time.AfterFunc(p.opts.Limit, func() { _ = p.conn.Close() })
	defer late.Stop()
	pieces := make([][][]byte, items)
	for {
		var b []byte
		if err := p.stream.RecvMsg(&b); err != nil {
			return nil, err
		}
		head, results, err := frame.DecodeResults(b)
		switch {
		case err != nil:
			return nil, err
		case head.BatchID != id:
			continue
		case len(results) != items:
			return nil, fmt.Errorf("%d results for %d items", len(results), items)
		case head.Kind == frame.KindPiece:
			for i := range results {
				if len(results[i].Body) > 0 {
					pieces[i] = append(pieces[i], results[i].Body)
				}
			}
			continue
		}
		all := make([]Result, items)
		for i := range results {
			all[i] = resultOf(&results[i])
			all[i].Pieces = pieces[i]
		}
		return all, nil
	}
}

func resultOf(r *frame.Result) Result {
	out := Result{Status: int(r.Status), Body: r.Body}
	for _, h := range r.Header {
		out.Header = append(out.Header, handlersdk.Field(h))
	}
	if r.Failure != nil {
		out.Failure = &Failure{Reason: string(r.Failure.Reason), Message: r.Failure.Message, Detail: r.Failure.Detail}
	}
	return out
}

// Stop ends the process as the server does, and gives an error when it did not end by itself, or not well.
func (p *Plugin) Stop() error {
	ctx, cancel := p.limited()
	defer cancel()
	if _, err := p.rpc.Unload(ctx, &backendv1.UnloadRequest{}); err != nil {
		return fmt.Errorf("unload: %w", err)
	}
	// Its answer may be lost with the connection.
	_ = p.conn.Invoke(ctx, "/plugin.GRPCController/Shutdown", &emptypb.Empty{}, &emptypb.Empty{})
	select {
	case <-p.exited:
	case <-ctx.Done():
		return errors.New("it does not end after Unload and Shutdown")
	}
	if code := p.cmd.ProcessState.ExitCode(); code != 0 {
		return fmt.Errorf("it ended with %v", p.cmd.ProcessState)
	}
	return nil
}
