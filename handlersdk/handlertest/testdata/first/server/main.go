// Command server starts a plugin and asks it as the first server did, with the messages and frames of that release. It reads batches of texts from standard input,
// a JSON list each, and writes what came of each to standard output.
package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strconv"
	"syscall"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/go-plugin"
	"google.golang.org/grpc"
	"google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/protobuf/types/known/emptypb"

	backendv1 "github.com/flambeau-serve/flambeau/handlersdk/handlertest/testdata/first/backendv1"
	"github.com/flambeau-serve/flambeau/handlersdk/handlertest/testdata/first/frame"
)

const (
	messageLimit = 64 << 20
	limit        = time.Minute
)

func main() {
	version := flag.Int("version", backendv1.ProtocolVersion, "the protocol's version that it speaks")
	flag.Parse()
	batches := os.Stdin
	null, err := os.Open(os.DevNull)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	os.Stdin = null // the plugin's, too
	if err := run(*version, flag.Arg(0), flag.Args()[1:], batches); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// loaded and answer are what is written.
type loaded struct {
	Protocol int      `json:"protocol"`
	Features []string `json:"features"`
	Unknown  int      `json:"unknown"` // bytes of the answer that this release knows no field for
	Failure  string   `json:"failure"`
}

type answer struct {
	Status  uint32        `json:"status"`
	Header  []frame.Field `json:"header"`
	Body    string        `json:"body"`
	Reason  string        `json:"reason"`
	Message string        `json:"message"`
	Detail  string        `json:"detail"`
}

func run(version int, path string, args []string, batches io.Reader) error {
	client, lifeline, err := start(version, path, args)
	if err != nil {
		return err
	}
	defer client.Kill()
	defer lifeline.Close()
	protocol, err := client.Client()
	if err != nil {
		return err
	}
	raw, err := protocol.Dispense(backendv1.PluginName)
	if err != nil {
		return err
	}
	conn := raw.(*grpc.ClientConn)
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	health, err := grpc_health_v1.NewHealthClient(conn).Check(ctx, &grpc_health_v1.HealthCheckRequest{Service: plugin.GRPCServiceName})
	if err != nil || health.GetStatus() != grpc_health_v1.HealthCheckResponse_SERVING {
		return fmt.Errorf("health: %v, %w", health.GetStatus(), err)
	}
	return converse(ctx, conn, client, batches)
}

// start starts the process with the descriptors and the environment of the first server.
func start(version int, path string, args []string) (*plugin.Client, *os.File, error) {
	lifelineR, lifelineW, err := os.Pipe()
	if err != nil {
		return nil, nil, err
	}
	cmd := exec.Command(path, args...)
	cmd.Env = append(os.Environ(), backendv1.EnvMaxMessageBytes+"="+strconv.Itoa(messageLimit))
	cmd.ExtraFiles = []*os.File{lifelineR, os.Stderr}
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: backendv1.OrphanSignal}
	client := plugin.NewClient(&plugin.ClientConfig{
		HandshakeConfig: plugin.HandshakeConfig{
			ProtocolVersion: uint(version), MagicCookieKey: backendv1.CookieKey, MagicCookieValue: backendv1.CookieValue,
		},
		Plugins:          plugin.PluginSet{backendv1.PluginName: connection{}},
		AllowedProtocols: []plugin.Protocol{plugin.ProtocolGRPC},
		Cmd:              cmd,
		Logger:           hclog.NewNullLogger(),
		GRPCDialOptions: []grpc.DialOption{
			grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(messageLimit), grpc.MaxCallSendMsgSize(messageLimit)), grpc.WithNoProxy(), grpc.WithAuthority("localhost"),
		},
	})
	return client, lifelineW, nil
}

// converse loads the model, runs the batches, and ends the plugin.
func converse(ctx context.Context, conn *grpc.ClientConn, client *plugin.Client, batches io.Reader) error {
	rpc, out := backendv1.NewBackendClient(conn), json.NewEncoder(os.Stdout)
	dir, err := os.Getwd()
	if err != nil {
		return err
	}
	resp, err := rpc.Load(ctx, &backendv1.LoadRequest{
		ModelName: "m", ModelVersion: "1.0", ModelDir: dir, Handler: "h", BatchSize: 4, MaxResponseBytes: messageLimit / 2,
	})
	if err != nil {
		return fmt.Errorf("load: %w", err)
	}
	told := loaded{client.NegotiatedVersion(), resp.GetFeatures(), len(resp.ProtoReflect().GetUnknown()), resp.GetFailure().GetMessage()}
	if err := out.Encode(told); err != nil {
		return err
	}
	stream, err := rpc.Execute(ctx, grpc.ForceCodecV2(frame.Codec{}))
	if err != nil {
		return err
	}
	lines := bufio.NewScanner(batches)
	for id := uint64(1); lines.Scan(); id++ {
		var texts []string
		if err := json.Unmarshal(lines.Bytes(), &texts); err != nil {
			return err
		}
		answers, err := ask(stream, id, texts)
		if err != nil {
			return fmt.Errorf("batch %d: %w", id, err)
		}
		if err := out.Encode(answers); err != nil {
			return err
		}
	}
	if _, err := rpc.Unload(ctx, &backendv1.UnloadRequest{}); err != nil {
		return fmt.Errorf("unload: %w", err)
	}
	_ = conn.Invoke(ctx, "/plugin.GRPCController/Shutdown", &emptypb.Empty{}, &emptypb.Empty{}) // its answer may be lost
	for !client.Exited() {
		if ctx.Err() != nil {
			return errors.New("the plugin does not end")
		}
		time.Sleep(10 * time.Millisecond)
	}
	return nil
}

// ask runs a batch: kinds of frames but results are passed over.
func ask(stream grpc.BidiStreamingClient[backendv1.Frame, backendv1.Frame], id uint64, texts []string) ([]answer, error) {
	items := make([]frame.Item, len(texts))
	for i, text := range texts {
		items[i] = frame.Item{
			ID: fmt.Sprintf("%d-%d", id, i), Deadline: time.Now().Add(limit).UnixNano(),
			Header: []frame.Field{{Name: "content-type", Value: "text/plain"}},
			Parts:  []frame.Part{{Name: "body", ContentType: "text/plain", Data: []byte(text)}},
		}
	}
	if err := stream.SendMsg(frame.EncodeBatch(id, items)); err != nil {
		return nil, err
	}
	for {
		var b []byte
		if err := stream.RecvMsg(&b); err != nil {
			return nil, err
		}
		head, err := frame.DecodeHead(b)
		if err != nil {
			return nil, err
		}
		if head.Kind != frame.KindResults || head.BatchID != id {
			continue
		}
		_, results, err := frame.DecodeResults(b)
		if err != nil {
			return nil, err
		}
		answers := make([]answer, len(results))
		for i, r := range results {
			answers[i] = answer{Status: r.Status, Header: r.Header, Body: string(r.Body)}
			if r.Failure != nil {
				answers[i].Reason, answers[i].Message, answers[i].Detail = string(r.Failure.Reason), r.Failure.Message, r.Failure.Detail
			}
		}
		return answers, nil
	}
}

// connection is the client side of the plugin: the gRPC connection itself.
type connection struct{ plugin.NetRPCUnsupportedPlugin }

// GRPCServer implements plugin.GRPCPlugin; this side serves nothing.
func (connection) GRPCServer(*plugin.GRPCBroker, *grpc.Server) error { return nil }

// GRPCClient implements plugin.GRPCPlugin.
func (connection) GRPCClient(_ context.Context, _ *plugin.GRPCBroker, c *grpc.ClientConn) (any, error) {
	return c, nil
}
