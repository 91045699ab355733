package argparse

import (
	"encoding/json"
	"errors"
	"os/exec"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func command() *Command {
	return &Command{
		Prog: "prog", About: "About.",
		Options: []Option{
			{Names: []string{"-v", "--version"}},
			{Names: []string{"--start"}},
			{Names: []string{"--stop"}},
			{Names: []string{"--ts-config"}, Kind: Value},
			{Names: []string{"--model-store"}, Kind: Value},
			{Names: []string{"--models"}, Kind: List, Metavar: "MODEL"},
			{Names: []string{"--no-config-snapshots", "--ncs"}},
			{Names: []string{"-q", "--quiet"}},
			{Names: []string{"-o", "--out"}, Kind: Value},
		},
		Exclusive: []string{"--version", "--start", "--stop"},
	}
}

// lines are command lines whose reading is compared with Python's.
func lines() []string {
	return []string{
		"", "--start", "--star", "--sta", "--st", "--s", "--vers", "-v", "-vq", "-vqo x", "-qox", "-q -o=x", "-qv", "--start --stop", "--start --start", "--stop -v",
		"--models a", "--models a b=c http://h/x", "--models", "--models --start", "--models a --start b", "--models=a b", "--models=a", "--models a --models b",
		"--model-store x", "--model-s x", "--model", "--mod x", "--model-store", "--model-store --start", "--model-store=", "--model-store -5", "--model-store -x",
		"--model-store -", "--ts-config=x=y", "--ts-c x --ts-config y", "--start=1", "--ncs", "--nc", "--no-config-snapshots", "--no --ncs", "--unknown", "--unknown x --start",
		"x", "-x", "-5", "-h", "--help --unknown", "--unknown --help", "--hel", "--quiet=", "-o", "-vh",
	}
}

const pythonSide = `
import argparse, io, json, sys, contextlib
def parse(line):
    p = argparse.ArgumentParser(prog="prog", description="About.")
    g = p.add_mutually_exclusive_group()
    g.add_argument("-v", "--version", action="store_true")
    g.add_argument("--start", action="store_true")
    g.add_argument("--stop", action="store_true")
    p.add_argument("--ts-config")
    p.add_argument("--model-store")
    p.add_argument("--models", nargs="+", metavar="MODEL")
    p.add_argument("--no-config-snapshots", "--ncs", action="store_true")
    p.add_argument("-q", "--quiet", action="store_true")
    p.add_argument("-o", "--out")
    err, out = io.StringIO(), io.StringIO()
    try:
        with contextlib.redirect_stderr(err), contextlib.redirect_stdout(out):
            a = vars(p.parse_args(line))
    except SystemExit as e:
        if e.code == 0:
            return "help"
        return "error: " + err.getvalue().split("error: ", 1)[1].strip()
    return {k.replace("_", "-"): v for k, v in a.items() if v not in (None, False)}
print(json.dumps([parse(l.split()) for l in json.load(sys.stdin)] if sys.version_info < (3, 12) else None))
`

// TestLikePython compares with the argparse that the torchserve command uses.
func TestLikePython(t *testing.T) {
	t.Parallel()
	python, err := exec.LookPath("python3")
	if err != nil {
		t.Skip("python3 is not there")
	}
	in, err := json.Marshal(lines())
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), python, "-c", pythonSide) //nolint:gosec // both are named here
	cmd.Stdin = strings.NewReader(string(in))
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	var wants []any
	if err := json.Unmarshal(out, &wants); err != nil {
		t.Fatal(err)
	}
	if wants == nil {
		t.Skip("argparse words some errors differently since Python 3.12")
	}
	for i, line := range lines() {
		if diff := cmp.Diff(wants[i], outcome(command(), line)); diff != "" {
			t.Errorf("%q: %s", line, diff)
		}
	}
}

// outcome is what came of a line, in the form of the Python side.
func outcome(c *Command, line string) any {
	args, err := c.Parse(strings.Fields(line))
	var bad *UsageError
	switch {
	case errors.Is(err, ErrHelp):
		return "help"
	case errors.As(err, &bad):
		return "error: " + bad.Text
	}
	got := map[string]any{}
	for i := range c.Options {
		o := &c.Options[i]
		key := strings.TrimLeft(o.name(), "-")
		switch {
		case !args.Has(o.name()):
		case o.Kind == Flag:
			got[key] = true
		case o.Kind == Value:
			got[key] = args.Get(o.name())
		default:
			var list []any
			for _, v := range args.All(o.name()) {
				list = append(list, v)
			}
			got[key] = list
		}
	}
	return got
}

func TestPositional(t *testing.T) {
	t.Parallel()
	c := command()
	c.Positional, c.Least, c.Most = "MODEL", 1, 1
	args, err := c.Parse([]string{"m", "--quiet"})
	if err != nil || args.Rest[0] != "m" || !args.Has("--quiet") {
		t.Errorf("got %+v, %v", args, err)
	}
	for line, says := range map[string]string{"": "required: MODEL", "a b": "unrecognized arguments: b"} {
		if _, err := c.Parse(strings.Fields(line)); err == nil || !strings.Contains(err.Error(), says) {
			t.Errorf("%q: %v, want one that says %q", line, err, says)
		}
	}
}

func TestUsageOfSeveral(t *testing.T) {
	t.Parallel()
	for most, want := range map[int]string{1: "prog [-h] MODEL\n", 9: "prog [-h] MODEL [MODEL ...]\n"} {
		c := &Command{Prog: "prog", Positional: "MODEL", Least: 1, Most: most}
		if got := c.Usage(); !strings.HasSuffix(got, want) {
			t.Errorf("up to %d: %q", most, got)
		}
	}
}

func TestEach(t *testing.T) {
	t.Parallel()
	c := &Command{Prog: "prog", Options: []Option{{Names: []string{"--form"}, Kind: Each, Metavar: "F"}}, Positional: "MODEL", Least: 1, Most: 1}
	args, err := c.Parse(strings.Fields("--form a=1 model --form=b=2 --form c"))
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]string{"a=1", "b=2", "c"}, args.All("--form")); diff != "" {
		t.Error(diff)
	}
	if diff := cmp.Diff([]string{"model"}, args.Rest); diff != "" {
		t.Error(diff)
	}
	if _, err := c.Parse([]string{"model", "--form"}); err == nil || err.Error() != "argument --form: expected one argument" {
		t.Errorf("%v", err)
	}
	if want := "usage: prog [-h] [--form F] MODEL\n"; c.Usage() != want {
		t.Errorf("%q, want %q", c.Usage(), want)
	}
}

func TestHelp(t *testing.T) {
	t.Parallel()
	c := &Command{
		Prog: "prog", About: "About.", Exclusive: []string{"--start", "--stop"}, Positional: "MODEL", Least: 1, Most: 1,
		Options: []Option{
			{Names: []string{"--start"}, Help: "Start it."},
			{Names: []string{"--stop"}, Help: "Stop it."},
			{Names: []string{"--secret"}, Hidden: true},
			{Names: []string{"--models"}, Kind: List, Metavar: "M", Help: "Models to be loaded, which can be many, and about which much more can be said than fits one line."},
		},
	}
	want := `usage: prog [-h] [--start | --stop] [--models M [M ...]] MODEL

About.

options:
  -h, --help            show this help message and exit
  --start               Start it.
  --stop                Stop it.
  --models M [M ...]    Models to be loaded, which can be many, and about which much more can be
                        said than fits one line.
`
	if diff := cmp.Diff(want, c.Help()); diff != "" {
		t.Error(diff)
	}
}

func FuzzParse(f *testing.F) {
	for _, line := range lines() {
		f.Add(line)
	}
	f.Fuzz(func(_ *testing.T, line string) {
		_, _ = command().Parse(strings.Split(line, " "))
	})
}
