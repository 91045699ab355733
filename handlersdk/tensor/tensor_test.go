package tensor

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestHalfIsExact(t *testing.T) {
	t.Parallel()
	for h := range 1 << 16 {
		f := HalfToFloat(uint16(h))
		if f != f { //nolint:gocritic // not a number
			if back := HalfToFloat(FloatToHalf(f)); back == back { //nolint:gocritic // the same
				t.Fatalf("%#x: not a number became %g", h, back)
			}
			continue
		}
		if back := FloatToHalf(f); int(back) != h {
			t.Fatalf("%#x is %g, which became %#x", h, f, back)
		}
	}
	for f, want := range map[float32]uint16{65504: 0x7bff, 65519: 0x7bff, 65520: 0x7c00, 1e10: 0x7c00, 5.9e-8: 1, 2.9e-8: 0, 1.0009765: 0x3c01, 1.00048828125: 0x3c00, 1.00146484375: 0x3c02} {
		if got := FloatToHalf(f); got != want {
			t.Errorf("%g became %#x, want %#x", f, got, want)
		}
	}
}

func TestParseJSON(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		dtype DType
		shape []int64
		text  string
		want  string // flat JSON of the result
		wrong string // part of the error
	}{
		{FP32, []int64{2, 2}, `[[1, 2.5], [-3e2, 4]]`, `[1,2.5,-300,4]`, ""},
		{FP32, []int64{2, 2}, `[1,2,3,4]`, `[1,2,3,4]`, ""},
		{FP32, nil, `[[1,2,3],[4,5,6]]`, `[1,2,3,4,5,6]`, ""},
		{FP32, []int64{}, `7`, `[7]`, ""},
		{FP32, []int64{1}, `7`, `[7]`, ""},
		{FP32, []int64{0}, `[]`, `[]`, ""},
		{FP64, []int64{1}, `[0.1]`, `[0.1]`, ""},
		{FP32, []int64{2}, `[NaN, 1]`, `[null,1]`, ""},
		{FP16, []int64{2}, `[0.1, 65504]`, `[0.099975586,65504]`, ""},
		{BF16, []int64{1}, `[1.00390625]`, `[1]`, ""},
		{Int8, []int64{3}, `[-128, 127, 3.0]`, `[-128,127,3]`, ""},
		{Uint64, []int64{1}, `[18446744073709551615]`, `[18446744073709551615]`, ""},
		{Int64, []int64{1}, `[-9223372036854775808]`, `[-9223372036854775808]`, ""},
		{Bool, []int64{4}, `[true, false, 1, 0]`, `[true,false,true,false]`, ""},
		{Bytes, []int64{2}, `["a\"b", "é"]`, `["a\"b","é"]`, ""},
		{Int8, []int64{1}, `[128]`, "", `"128" at byte 1 is no INT8`},
		{Uint8, []int64{1}, `[-1]`, "", `is no UINT8`},
		{Int32, []int64{1}, `[1.5]`, "", `is no INT32`},
		{FP32, []int64{1}, `["1"]`, "", `there is a string`},
		{Bytes, []int64{1}, `[1]`, "", `is no BYTES`},
		{FP32, []int64{3}, `[1,2]`, "", "has 3 elements, and 2 were given"},
		{FP32, []int64{2, 2}, `[[1,2,3,4]]`, "", "nested as [1 4]"},
		{FP32, nil, `[[1,2],[3]]`, "", "has 1 members, and others beside it have 2"},
		{FP32, nil, `[1,[2]]`, "", "mixed"},
		{FP32, nil, `[[1],2]`, "", "mixed"},
		{FP32, []int64{1}, `[1] 2`, "", "something follows"},
		{FP32, []int64{1}, `[1`, "", "ends within an array"},
		{FP32, []int64{1}, `[1;2]`, "", "a comma or ]"},
		{FP32, []int64{1}, `[0x10]`, "", "is no FP32"},
		{FP32, []int64{-1}, `[1]`, "", "negative"},
		{FP32, []int64{1 << 40, 1 << 40}, `[1]`, "", "too many"},
		{FP32, nil, strings.Repeat("[", 100), "", "deeper"},
	} {
		got, err := ParseJSON("x", c.dtype, c.shape, []byte(c.text))
		if c.wrong != "" {
			if err == nil || !strings.Contains(err.Error(), c.wrong) {
				t.Errorf("%s %v %s: %v, want an error with %q", c.dtype, c.shape, c.text, err, c.wrong)
			}
			continue
		}
		if err != nil {
			t.Errorf("%s %v %s: %v", c.dtype, c.shape, c.text, err)
			continue
		}
		text, err := got.AppendJSON(nil)
		if err != nil || string(text) != c.want {
			t.Errorf("%s %v %s became %s, %v", c.dtype, c.shape, c.text, text, err)
		}
	}
}

// TestNPYByNumpy reads what numpy wrote and the reverse.
func TestNPYByNumpy(t *testing.T) {
	t.Parallel()
	python := os.Getenv("FLAMBEAU_TEST_PYTHON")
	if python == "" {
		python = "../../.venv-test/bin/python"
	}
	if exec.CommandContext(t.Context(), python, "-c", "import numpy").Run() != nil { //nolint:gosec // the tests' own Python
		t.Skip("no Python with numpy: FLAMBEAU_TEST_PYTHON names none, and make test has not made one yet")
	}
	dir := t.TempDir()
	const script = `
import numpy, sys
for name, a in {
    "f4": numpy.array([[1.5, -2], [3, 4]], "f4"), "f8": numpy.array([0.1]), "i8": numpy.array([-5, 7]), "u2be": numpy.array([1, 258], ">u2"),
    "b": numpy.array([True, False]), "f2": numpy.array([0.5], "f2"), "scalar": numpy.array(3, "i4"), "empty": numpy.zeros((0, 3), "f4"),
    "S": numpy.array([b"ab", b"c"]), "U": numpy.array(["\u00e9x", "y"]),
}.items():
    numpy.save(sys.argv[1] + "/" + name, a)
`
	if out, err := exec.CommandContext(t.Context(), python, "-c", script, dir).CombinedOutput(); err != nil { //nolint:gosec // the test's own
		t.Fatalf("%v\n%s", err, out)
	}
	for name, want := range map[string]struct {
		dtype DType
		shape []int64
		json  string
	}{
		"f4": {FP32, []int64{2, 2}, `[1.5,-2,3,4]`}, "f8": {FP64, []int64{1}, `[0.1]`}, "i8": {Int64, []int64{2}, `[-5,7]`}, "u2be": {Uint16, []int64{2}, `[1,258]`},
		"b": {Bool, []int64{2}, `[true,false]`}, "f2": {FP16, []int64{1}, `[0.5]`}, "scalar": {Int32, []int64{}, `[3]`}, "empty": {FP32, []int64{0, 3}, `[]`},
		"S": {Bytes, []int64{2}, `["ab","c"]`}, "U": {Bytes, []int64{2}, `["éx","y"]`},
	} {
		file, err := os.ReadFile(filepath.Join(dir, name+".npy"))
		if err != nil {
			t.Fatal(err)
		}
		got, err := ParseNPY(name, file)
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		text, err := got.AppendJSON(nil)
		if err != nil || got.DType != want.dtype || !cmp.Equal(got.Shape, want.shape) || string(text) != want.json {
			t.Errorf("%s became %s %v %s, %v", name, got.DType, got.Shape, text, err)
		}
		if got.DType == Bytes {
			continue
		}
		again, err := got.AppendNPY(nil)
		if err != nil {
			t.Errorf("%s: %v", name, err)
		}
		if name != "u2be" && !bytes.Equal(again, file) {
			t.Errorf("%s is written as\n%q, numpy writes\n%q", name, again, file)
		}
	}
}

func TestConcatAndSplit(t *testing.T) {
	t.Parallel()
	words := func(all ...string) Tensor {
		x := Tensor{Name: "x", DType: Bytes, Shape: []int64{int64(len(all))}}
		for _, w := range all {
			x.Data = AppendElement(x.Data, []byte(w))
		}
		return x
	}
	for name, parts := range map[string][]Tensor{
		"floats": {FromFloats("x", []int64{2, 1}, []float32{1, 2}), FromFloats("x", []int64{1, 1}, []float32{3}), FromFloats("x", []int64{0, 1}, nil)},
		"words":  {words("a", ""), words("bc"), words()},
	} {
		joined, err := Concat(parts)
		if err != nil || joined.Check() != nil || joined.Shape[0] != 3 {
			t.Fatalf("%s: %v, %v", name, joined, err)
		}
		back, err := joined.Split([]int64{2, 1, 0})
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		for i := range parts {
			if !cmp.Equal(back[i].Shape, parts[i].Shape) || !bytes.Equal(back[i].Data, parts[i].Data) {
				t.Errorf("%s: part %d came back as %v", name, i, back[i])
			}
		}
	}
	a, b := FromFloats("x", []int64{1, 2}, []float32{1, 2}), FromFloats("x", []int64{1, 3}, []float32{1, 2, 3})
	if _, err := Concat([]Tensor{a, b}); err == nil {
		t.Error("rows of different lengths were joined")
	}
	if _, err := a.Split([]int64{2}); err == nil {
		t.Error("one row was cut into two")
	}
}

func TestCheck(t *testing.T) {
	t.Parallel()
	for _, x := range []Tensor{
		{DType: "FP31", Shape: []int64{1}, Data: []byte{0}},
		{DType: FP32, Shape: []int64{1}, Data: []byte{0}},
		{DType: FP32, Shape: []int64{-1}},
		{DType: Bytes, Shape: []int64{1}, Data: []byte{1, 0, 0}},
		{DType: Bytes, Shape: []int64{1}, Data: []byte{9, 0, 0, 0, 'a'}},
		{DType: Bytes, Shape: []int64{2}, Data: AppendElement(nil, []byte("a"))},
	} {
		if x.Check() == nil {
			t.Errorf("%s %v with %d bytes is accepted", x.DType, x.Shape, len(x.Data))
		}
	}
}

func FuzzParseJSON(f *testing.F) {
	for _, text := range []string{`[[1,2],[3,4]]`, `["a","b"]`, `[true]`, `[1e400]`, `[`, `"`, `[[[]]]`} {
		f.Add("FP32", text)
		f.Add("BYTES", text)
		f.Add("INT8", text)
	}
	f.Fuzz(func(t *testing.T, dtype, text string) {
		d, err := ParseDType(dtype)
		if err != nil {
			return
		}
		x, err := ParseJSON("x", d, nil, []byte(text))
		if err != nil {
			return
		}
		if len(x.Shape) > 0 && x.Check() != nil && !bytes.Contains([]byte(text), []byte("[]")) {
			t.Errorf("%q gave %v: %v", text, x, x.Check())
		}
		text2, err := x.AppendJSON(nil)
		if err != nil || bytes.Contains(text2, []byte("null")) {
			return
		}
		again, err := ParseJSON("x", d, x.Shape, text2)
		if err == nil && !bytes.Equal(again.Data, x.Data) {
			t.Errorf("%q is written as %q, which means something else", text, text2)
		}
	})
}

func FuzzParseNPY(f *testing.F) {
	x := FromFloats("x", []int64{2, 1}, []float32{1, 2})
	file, err := x.AppendNPY(nil)
	if err != nil {
		f.Fatal(err)
	}
	f.Add(file)
	f.Add([]byte(npyMagic + "\x02\x00\xff\xff\xff\xff    "))
	f.Fuzz(func(t *testing.T, file []byte) {
		x, err := ParseNPY("x", file)
		if err == nil && x.Check() != nil {
			t.Errorf("gave %v: %v", x, x.Check())
		}
	})
}
