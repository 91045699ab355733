package main

import (
	"net"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/flambeau-serve/flambeau/internal/config"
)

// TestAdviceAboutAddresses: what is told to be changed is what is to blame.
func TestAdviceAboutAddresses(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "config.properties")
	text := "inference_address=http://10.9.9.9:8080\ngrpc_inference_address=10.9.9.9\ngrpc_inference_port=80\ngrpc_management_address=10.9.9.9\ngrpc_management_port=81\n"
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	cfg, err := config.Load(config.Source{File: file})
	if err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		key  string
		err  error
		want string
	}{
		{"grpc_inference_port", syscall.EADDRINUSE, "; stop what uses it, or change grpc_inference_port in "},
		{"grpc_inference_port", syscall.EACCES, "; change grpc_inference_port in "},
		{"grpc_inference_port", syscall.EADDRNOTAVAIL, "; change grpc_inference_address in "},
		{"grpc_inference_port", &net.OpError{Op: "listen", Net: "tcp", Err: &net.DNSError{Err: "no such host", Name: "nowhere", IsNotFound: true}}, "; change grpc_inference_address in "},
		{"grpc_management_port", syscall.EADDRNOTAVAIL, "; change grpc_management_address in "},
		{"inference_address", syscall.EADDRNOTAVAIL, "; change inference_address in "},
		{"inference_address", syscall.EADDRINUSE, "; stop what uses it, or change inference_address in "},
	} {
		if got := cannotListen(cfg, tt.key, tt.err).Error(); !strings.Contains(got, tt.want) {
			t.Errorf("%s: %q is not in %q", tt.key, tt.want, got)
		}
	}
}
