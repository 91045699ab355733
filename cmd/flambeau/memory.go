package main

import (
	"log/slog"
	"os"
	"runtime"
	"runtime/debug"
	"runtime/metrics"
	"slices"
	"strings"

	"github.com/flambeau-serve/flambeau/internal/cgroup"
	"github.com/flambeau-serve/flambeau/internal/config"
)

// limitMemory keeps the server's own memory below half of its cgroup's limit, which it shares with the workers, unless GOMEMLIMIT says something
// else. It is a soft limit: near it the garbage collector works more.
func limitMemory(environ []string, log *slog.Logger) {
	for _, entry := range environ {
		if strings.HasPrefix(entry, "GOMEMLIMIT=") {
			return
		}
	}
	group, err := cgroup.System{}.Memory(os.Getpid())
	if err != nil {
		return // there are none here
	}
	if limit := group.MemoryLimit().Bytes; limit > 0 {
		debug.SetMemoryLimit(limit / 2)
		log.Info("memory of the server is limited", "bytes", limit/2, "cgroup_bytes", limit)
	}
}

// roomForGarbage lets garbage take some dozen megabytes before it is collected, or as much as what lives, unless GOGC says something else. What lives is small beside
// the bodies of requests, so that the collector would run with every few of them.
func roomForGarbage(environ []string) {
	if !slices.ContainsFunc(environ, func(entry string) bool { return strings.HasPrefix(entry, "GOGC=") }) {
		tendGarbage(usualPercent)
	}
}

// tendGarbage goes by what lives after each collection. percent is GOGC's value now.
func tendGarbage(percent int) {
	live := []metrics.Sample{{Name: "/gc/heap/live:bytes"}}
	metrics.Read(live)
	if wanted := garbagePercent(live[0].Value.Uint64()); wanted < percent || wanted > percent+percent/4 { // setting it stops everything for a moment
		percent = wanted
		debug.SetGCPercent(percent)
	}
	collected := &struct{ self any }{} // found to be garbage by the next collection
	runtime.AddCleanup(collected, tendGarbage, percent)
}

const usualPercent = 100 // of GOGC

// garbagePercent is GOGC for a heap in which so much lives.
func garbagePercent(live uint64) int {
	const room, least = 32 << 20, 4 << 20 // with less, the least heap that is collected would be larger than the room
	return max(usualPercent, int(room*usualPercent/max(live, least)))
}

// logSettings writes what differs from the defaults, and why.
func logSettings(cfg *config.Config, log *slog.Logger) {
	log.Info("starting", "version", version, "pid", os.Getpid(), "config_file", cfg.File, "temp_folder", cfg.Env.TempDir)
	for _, v := range cfg.Values() {
		if v.Origin.Kind != config.FromDefault {
			log.Info("setting", "key", v.Key, "value", shownSetting(v), "origin", v.Origin.String())
		}
	}
	if cfg.ModelAPI && cfg.Value("allowed_urls").Origin.Kind == config.FromDefault {
		log.Warn("models may be fetched from any public address, and any file that holds one, by whoever reaches the management API; set allowed_urls to the places that you use")
	}
}
