package e2e

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// Reproduction is a row of the table of known bugs at the top of a test file: a case, and the tests that would fail on its fault.
type Reproduction struct {
	Case  string
	Tests [][2]string // package and name
}

// Reproductions reads the table of a test file: lines of a comment, indented by a tab, with two spaces or more between the case and its tests.
func Reproductions(t *testing.T, file string) []Reproduction {
	t.Helper()
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	named := regexp.MustCompile(`\b([a-z0-9]+)\.(Test\w+)`)
	var rows []Reproduction
	for line := range strings.Lines(string(text)) {
		row, is := strings.CutPrefix(line, "//\t")
		name, tests, two := strings.Cut(row, "  ")
		if !is || !two {
			continue
		}
		r := Reproduction{Case: name}
		for _, found := range named.FindAllStringSubmatch(tests, -1) {
			r.Tests = append(r.Tests, [2]string{found[1], found[2]})
		}
		if len(r.Tests) == 0 {
			t.Errorf("%s: no test is named for %q", file, name)
		}
		rows = append(rows, r)
	}
	if len(rows) == 0 {
		t.Errorf("%s has no table", file)
	}
	return rows
}

// RequireTests fails the test when a table names a test that is not there. Folders are those of the packages, by the names that the table has.
func RequireTests(t *testing.T, rows []Reproduction, folders map[string]string) {
	t.Helper()
	sources := map[string]string{}
	for name, dir := range folders {
		files, err := filepath.Glob(filepath.Join(dir, "*_test.go"))
		if err != nil || len(files) == 0 {
			t.Fatalf("%s: %v", dir, err)
		}
		for _, file := range files {
			text, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			sources[name] += string(text)
		}
	}
	for _, row := range rows {
		for _, test := range row.Tests {
			if !strings.Contains(sources[test[0]], "\nfunc "+test[1]+"(t *testing.T) {") {
				t.Errorf("%s: there is no test %s in %q", row.Case, test[1], folders[test[0]])
			}
		}
	}
}
