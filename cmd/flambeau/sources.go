package main

import (
	"fmt"
	"log/slog"
	"net/netip"
	"regexp"
	"slices"
	"strings"

	"github.com/flambeau-serve/flambeau/internal/config"
	"github.com/flambeau-serve/flambeau/internal/redact"
	"github.com/flambeau-serve/flambeau/modelstore/source"
)

// newFetcher makes what fetches archives for a server's clients.
func newFetcher(cfg *config.Config, log *slog.Logger) (*source.Fetcher, error) {
	opts := fetcherOptions(cfg, log)
	opts.PrivateNetworks, opts.Local = cfg.PrivateNetworks, isLocal(cfg.Management)
	f, err := source.New(opts)
	if err != nil {
		return nil, fmt.Errorf("the sources of models: %w", err)
	}
	return f, nil
}

// newOwnFetcher makes what fetches an archive for a command, whose user can reach all that it can.
func newOwnFetcher(cfg *config.Config, log *slog.Logger) (*source.Fetcher, error) {
	opts := fetcherOptions(cfg, log)
	opts.PrivateNetworks = []netip.Prefix{netip.PrefixFrom(netip.IPv4Unspecified(), 0), netip.PrefixFrom(netip.IPv6Unspecified(), 0)}
	f, err := source.New(opts)
	if err != nil {
		return nil, fmt.Errorf("the sources of models: %w", err)
	}
	return f, nil
}

// fetcherOptions are what both have in common. A list that says the same as the default one is not one's own: snapshots have it in them.
func fetcherOptions(cfg *config.Config, log *slog.Logger) source.Options {
	return source.Options{
		Allowed:  cfg.AllowedURLs,
		Default:  cfg.Value("allowed_urls").Origin.Kind == config.FromDefault || slices.Equal(cfg.AllowedURLs, []string{source.DefaultAllowed}),
		MaxBytes: cfg.MaxDownloadBytes, Logger: log,
	}
}

// urlSecrets are users and passwords in URLs, and queries, which may hold signatures.
var urlSecrets = regexp.MustCompile(`://[^/,\s]*@|\?[^,\s#"\\]*`)

// shownSetting is the text of a setting for the log.
func shownSetting(v config.Value) string {
	if v.Key != "load_models" && v.Key != "model_snapshot" {
		return v.Text
	}
	return urlSecrets.ReplaceAllStringFunc(v.Text, func(s string) string {
		if s[0] == '?' {
			return "?…"
		}
		return "://"
	})
}

// withoutSecrets takes passwords and signatures out of a list of models, which may be URLs.
func withoutSecrets(list string) string {
	parts := strings.Split(list, ",")
	for i := range parts {
		parts[i] = redact.URL(parts[i])
	}
	return strings.Join(parts, ",")
}

// isLocal says whether only this machine can reach an address.
func isLocal(a config.Address) bool {
	if a.Path != "" || strings.EqualFold(a.Host, "localhost") {
		return true
	}
	address, err := netip.ParseAddr(a.Host)
	return err == nil && address.Unmap().IsLoopback()
}
