package main

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/flambeau-serve/flambeau/internal/config"
	"github.com/flambeau-serve/flambeau/modelstore/deploy"
)

func TestScopeOf(t *testing.T) {
	t.Parallel()
	listed := []config.StartupModel{{Name: "n", URL: "m.mar"}}
	snapshot := &config.Snapshot{Models: []config.SnapshotModel{{Name: "s", File: "s.mar"}}}
	for name, tt := range map[string]struct {
		cfg        config.Config
		torchserve bool
		want       deploy.Scope
	}{
		"serve takes the whole store":   {want: deploy.Scope{All: true}},
		"torchserve takes nothing":      {torchserve: true},
		"serve takes what is listed":    {cfg: config.Config{Models: listed}, want: deploy.Scope{Listed: []deploy.Listed{{Name: "n", URL: "m.mar"}}}},
		"torchserve the same":           {cfg: config.Config{Models: listed}, torchserve: true, want: deploy.Scope{Listed: []deploy.Listed{{Name: "n", URL: "m.mar"}}}},
		"all":                           {cfg: config.Config{AllModels: true}, torchserve: true, want: deploy.Scope{All: true}},
		"all, also after a snapshot":    {cfg: config.Config{AllModels: true, Snapshot: snapshot}, torchserve: true, want: deploy.Scope{All: true}},
		"a snapshot goes before a list": {cfg: config.Config{Models: listed, Snapshot: snapshot}, torchserve: true, want: deploy.Scope{Listed: []deploy.Listed{{Name: "s", URL: "s.mar"}}}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if diff := cmp.Diff(tt.want, scopeOf(&tt.cfg, tt.torchserve)); diff != "" {
				t.Error(diff)
			}
		})
	}
}
