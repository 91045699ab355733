package deps

import (
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestReferences(t *testing.T) {
	t.Parallel()
	for line, want := range map[string][]reference{
		"# a comment ./x":                      nil,
		"tiny":                                 {{path: "tiny"}},
		"-r more.txt":                          {{path: "more.txt", nested: true}},
		"-rmore.txt":                           {{path: "more.txt", nested: true}},
		"--requirement=more.txt":               {{path: "more.txt", nested: true}},
		"--constraint more.txt":                {{path: "more.txt", nested: true}},
		"-e ./pkg[a,b]":                        {{path: "./pkg", linked: true}},
		"--editable=.":                         {{path: ".", linked: true}},
		"tiny @ file:./tiny.whl#sha256=1":      {{path: "tiny"}, {path: "./tiny.whl"}},
		"file:///opt/tiny.whl":                 {{path: "/opt/tiny.whl"}},
		`--find-links "wheels"`:                {{path: "wheels"}},
		"tiny ; python_version < '3' # ./more": {{path: "tiny"}, {path: ";"}, {path: "python_version"}, {path: "<"}, {path: "3"}},
	} {
		if diff := cmp.Diff(want, references(line), cmp.AllowUnexported(reference{})); diff != "" {
			t.Errorf("%s: %s", line, diff)
		}
	}
}

func FuzzReferences(f *testing.F) {
	for _, seed := range []string{"-r a.txt\n-c b", "-e .\n", "tiny @ file:x", "--", "-", "-r", "\x00", "a[b]", "\\\n"} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, text string) {
		for _, r := range references(text) {
			if r.path == "" {
				t.Errorf("an empty path in %q", text)
			}
		}
	})
}
