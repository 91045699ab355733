package settings

import (
	"os"
	"slices"
	"strings"
	"testing"
)

// The page about ONNX models names all of them, and no other one.
func TestNames(t *testing.T) {
	t.Parallel()
	page, err := os.ReadFile("../../../docs/onnx.md")
	if err != nil {
		t.Fatal(err)
	}
	_, after, found := strings.Cut(string(page), "\nhandler: ")
	line, _, _ := strings.Cut(after, "\n")
	told := slices.DeleteFunc(strings.FieldsFunc(line, func(r rune) bool { return r != '_' && (r < 'a' || r > 'z') }), func(word string) bool {
		return slices.Contains([]string{"or", "nothing", "tensors"}, word)
	})
	names := Names()
	slices.Sort(told)
	slices.Sort(names)
	if !found || !slices.Equal(told, names) {
		t.Errorf("the page says %q, and there are %q", told, names)
	}
	for _, name := range append(names, "") {
		if !Known(name) {
			t.Errorf("%q is not known", name)
		}
	}
	for _, name := range []string{"no_such_handler", "Raw", " raw", "image_segmenter"} {
		if Known(name) {
			t.Errorf("%q is known", name)
		}
	}
}
