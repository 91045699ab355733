// Command plugin is a handler that misbehaves as a request asks.
package main

import (
	"context"
	"os"
	"syscall"
	"time"

	"github.com/flambeau-serve/flambeau/handlersdk"
)

func main() { handlersdk.Serve(&handler{}) }

// answer is what the program was built to say; the linker writes it.
var answer = "1"

type handler struct{ model handlersdk.Model }

// Initialize implements handlersdk.Handler.
func (h *handler) Initialize(_ context.Context, m handlersdk.Model) error {
	h.model = m
	return nil
}

// Handle implements handlersdk.Handler.
func (h *handler) Handle(ctx context.Context, items []handlersdk.Item) ([]handlersdk.Result, error) {
	results := make([]handlersdk.Result, len(items))
	for i := range items {
		switch string(items[i].Body().Data) {
		case "panic":
			panic("the plugin's own panic")
		case "segv":
			if err := syscall.Kill(os.Getpid(), syscall.SIGSEGV); err != nil {
				return nil, err
			}
			<-ctx.Done()
		case "slow":
			select {
			case <-time.After(time.Minute):
			case <-ctx.Done():
			}
		case "args":
			for _, arg := range os.Args[1:] {
				results[i].Body = append(results[i].Body, arg+"|"...)
			}
		case "where":
			folder, err := os.Getwd()
			if err != nil {
				return nil, err
			}
			results[i].Body = []byte(folder)
		case "environment":
			for _, entry := range os.Environ() {
				results[i].Body = append(results[i].Body, entry+"\n"...)
			}
		default:
			results[i].Body = []byte(answer)
		}
	}
	return results, nil
}
