// Command plugin is a handler that is built with the first SDK.
package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"strings"
	"syscall"

	"github.com/flambeau-serve/flambeau/handlersdk/handlertest/testdata/first/handlersdk"
)

func main() { handlersdk.Serve(&handler{}) }

type handler struct {
	model  handlersdk.Model
	warmed bool
}

// Initialize implements handlersdk.Handler.
func (h *handler) Initialize(_ context.Context, m handlersdk.Model) error {
	h.model = m
	return nil
}

// WarmUp implements handlersdk.WarmUpper.
func (h *handler) WarmUp(context.Context) error {
	h.warmed = true
	return nil
}

// Handle implements handlersdk.Handler: it answers in capitals, and misbehaves on some words.
func (h *handler) Handle(ctx context.Context, items []handlersdk.Item) ([]handlersdk.Result, error) {
	if !h.warmed {
		return nil, fmt.Errorf("it was not warmed up")
	}
	results := make([]handlersdk.Result, len(items))
	for i := range items {
		part, _ := items[i].Part("body")
		switch text := string(part.Data); text {
		case "panic":
			panic("the first plugin's own panic")
		case "miscount":
			return append(results, results[0]), nil
		case "refuse":
			results[i].Err = handlersdk.Errorf(422, "I do not like %q", text)
		case "memory":
			results[i].Err = fmt.Errorf("the device: %w", handlersdk.ErrOutOfMemory)
		case "end":
			if err := syscall.Kill(os.Getpid(), syscall.SIGSEGV); err != nil {
				return nil, err
			}
			<-ctx.Done()
		case "x": // what tests of load ask, who want a number
			results[i].Body = []byte("1")
		case "status":
			results[i] = handlersdk.Result{Status: 203, Header: []handlersdk.Field{{Name: "x-of", Value: "the first"}}, Body: []byte("203")}
		case "model":
			body, err := json.Marshal(h.model)
			if err != nil {
				return nil, err
			}
			results[i].Body = body
		default:
			fmt.Println("the first plugin was asked for", text)
			results[i].Body = []byte(strings.ToUpper(text))
		}
	}
	return results, nil
}
