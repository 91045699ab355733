package handlersdk

import (
	"context"
	"errors"
	"fmt"
	"os"

	"github.com/flambeau-serve/flambeau/handlersdk/pluginserver"
	"github.com/flambeau-serve/flambeau/handlersdk/standalone"
	backendv1 "github.com/flambeau-serve/flambeau/proto/backend/v1"
)

// Serve serves h to the server that started this process, until the server asks for the end; then it exits the process.
// Call it first thing in main: nothing may be written to standard output before it. What the handler writes to standard
// output and standard error goes to the server's log of the model. Started by hand with --standalone, it serves h over HTTP, without the server.
func Serve(h Handler) {
	if err := serve(h); err != nil {
		fmt.Fprintln(os.Stderr, "flambeau:", err)
		os.Exit(1)
	}
	os.Exit(0)
}

func serve(h Handler) error {
	if h == nil {
		return errors.New("handlersdk.Serve was called without a handler")
	}
	if err := pluginserver.CheckCookie(); err != nil {
		opts, asked, bad := standalone.Parse(os.Args[1:])
		switch {
		case bad != nil:
			return bad
		case !asked:
			return fmt.Errorf("%w; to run it in a debugger: %s %s", err, os.Args[0], standalone.Usage)
		}
		opts.Backend, opts.Output = &adapter{handler: h}, os.Stderr
		return standalone.Serve(context.Background(), opts)
	}
	limit, err := pluginserver.MaxMessageBytes()
	if err != nil {
		return err
	}
	if err := pluginserver.WatchLifeline(os.NewFile(backendv1.LifelineFD, "lifeline")); err != nil {
		return err
	}
	handshake, err := pluginserver.TakeHandshake()
	if err != nil {
		return err
	}
	server, err := pluginserver.New(pluginserver.Options{
		Backend: &adapter{handler: h}, Handshake: handshake, MaxMessageBytes: limit,
	})
	if err != nil {
		return err
	}
	return server.Serve()
}
