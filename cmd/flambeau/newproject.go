package main

import (
	"cmp"
	"context"
	"fmt"

	"github.com/flambeau-serve/flambeau/cmd/flambeau/internal/argparse"
	"github.com/flambeau-serve/flambeau/cmd/flambeau/internal/project"
)

// newCommand describes `flambeau new`.
func newCommand() *argparse.Command {
	return &argparse.Command{
		Prog: "flambeau new",
		About: "Write the project of a handler in Go: a program that builds, its tests and its settings. \"flambeau new handler NAME\" makes the folder NAME.\n" +
			"docs/plugins.md has the rest.",
		Options: []argparse.Option{
			{Names: []string{"--dir"}, Kind: argparse.Value, Metavar: "DIR", Help: "The folder to make. Not given: NAME."},
			{Names: []string{"--module"}, Kind: argparse.Value, Metavar: "PATH", Help: "The path of the Go module. Not given: NAME."},
			{Names: []string{"--sdk"}, Kind: argparse.Value, Metavar: "CHECKOUT", Help: "Build it against this checkout of Flambeau, in place of the released module."},
		},
		Positional: "handler NAME", Least: 2, Most: 2,
	}
}

// newProject is `flambeau new`.
func (p *program) newProject(_ context.Context, args []string) int {
	command := newCommand()
	parsed, status := p.parse(command, args)
	if parsed == nil {
		return status
	}
	if parsed.Rest[0] != "handler" {
		printf(p.stderr, "%s%s: error: there is no project of the kind %q: it has to be handler\n", command.Usage(), command.Prog, parsed.Rest[0])
		return exitUsage
	}
	name := parsed.Rest[1]
	dir := cmp.Or(parsed.Get("--dir"), name)
	written, err := project.Write(dir, project.Options{Name: name, Module: parsed.Get("--module"), Version: sdkVersion(), SDK: parsed.Get("--sdk")})
	if err != nil {
		return p.fail(command.Prog, fmt.Errorf("no project: %w", err))
	}
	for _, file := range written {
		printf(p.stdout, "%s/%s\n", dir, file)
	}
	if !parsed.Has("--sdk") {
		printf(p.stdout, "\n%s cd %s && go mod edit -replace github.com/flambeau-serve/flambeau=CHECKOUT\n", sdkAdvice(version), dir)
	}
	printf(p.stdout, "\nNext: cd %s && go mod tidy && make test\n", dir)
	return exitOK
}

// sdkAdvice says when a project needs a checkout of Flambeau: its go.mod asks for the SDK of this server's version, which has to have been released.
func sdkAdvice(version string) string {
	if version == devVersion {
		return "This is a development build of Flambeau, to which no released SDK belongs. Before go mod tidy, run:"
	}
	return "Its go.mod asks for the SDK's version " + version + ". Should go mod tidy not find that, build it against a checkout of Flambeau:"
}

// devVersion is the version of a build that was given none.
const devVersion = "dev"

// sdkVersion is the version of the SDK that belongs to this server.
func sdkVersion() string {
	if version == devVersion {
		return "0.0.0"
	}
	return version
}
