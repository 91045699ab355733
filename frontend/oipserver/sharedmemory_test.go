package oipserver

import (
	"encoding/binary"
	"math"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/flambeau-serve/flambeau/frontend/oip"
	"github.com/flambeau-serve/flambeau/handlersdk/tensor"
	"github.com/flambeau-serve/flambeau/internal/infer"
)

func contains(text, part string) bool { return strings.Contains(text, part) }

func floats(values ...float32) []byte {
	var b []byte
	for _, v := range values {
		b = binary.LittleEndian.AppendUint32(b, math.Float32bits(v))
	}
	return b
}

// withMemory makes a server over a folder of objects.
func withMemory(t *testing.T) (*world, *Server, string) {
	t.Helper()
	w, dir := newWorld(), t.TempDir()
	return w, serve(t, w, func(o *Options) { o.SharedMemory, o.MaxSharedBytes = dir, 100 }), dir
}

func object(t *testing.T, dir, name string, content []byte) {
	t.Helper()
	if err := os.WriteFile(filepath.Join(dir, name), content, 0o600); err != nil {
		t.Fatal(err)
	}
}

func TestSharedMemoryInference(t *testing.T) {
	w, s, dir := withMemory(t)
	object(t, dir, "in", append([]byte("....head"), floats(1, 2)...))
	object(t, dir, "out", make([]byte, 16))
	for _, r := range []Region{{Name: "i", Key: "/in", Offset: 4, ByteSize: 12}, {Name: "o", Key: "/out", ByteSize: 16}} {
		if err := s.RegisterRegion(r); err != nil {
			t.Fatal(err)
		}
	}
	for _, model := range []string{"adder", "handler"} {
		object(t, dir, "out", make([]byte, 16)) // the same object: it is written over
		r := &oip.Request{
			Inputs:  []oip.Tensor{{Tensor: tensor.Tensor{Name: "A", DType: tensor.FP32, Shape: []int64{1, 2}}, Shared: &oip.Shared{Region: "i", Offset: 4, Size: 8}}},
			Outputs: []oip.Requested{{Name: "X", Shared: &oip.Shared{Region: "o", Offset: 8, Size: 8}}},
		}
		a, err := s.Infer(t.Context(), infer.ModelRef{Name: model}, &Call{ID: "1", Request: r, Body: []byte("{}")}, true)
		if err != nil {
			t.Fatalf("%s: %v", model, err)
		}
		if out := a.Response.Outputs[0]; out.Data != nil || out.Shared == nil || !cmp.Equal(out.Shape, []int64{1, 2}) {
			t.Errorf("%s: %+v", model, out)
		}
		got, err := os.ReadFile(filepath.Join(dir, "out"))
		if err != nil || !cmp.Equal(got, append(make([]byte, 8), floats(2, 3)...)) {
			t.Errorf("%s: %v % x", model, err, got)
		}
	}
	if len(w.seen) != 2 {
		t.Errorf("%d requests", len(w.seen))
	}
}

func TestSharedMemoryBounds(t *testing.T) {
	_, s, dir := withMemory(t)
	object(t, dir, "x", make([]byte, 16))
	if err := s.RegisterRegion(Region{Name: "x", Key: "/x", ByteSize: 16}); err != nil {
		t.Fatal(err)
	}
	ask := func(in, out *oip.Shared) error {
		r := request()
		if in != nil {
			r.Inputs[0] = oip.Tensor{Tensor: tensor.Tensor{Name: "A", DType: tensor.FP32, Shape: []int64{1, 2}}, Shared: in}
		}
		if out != nil {
			r.Outputs = []oip.Requested{{Name: "X", Shared: out}}
		}
		_, err := s.Infer(t.Context(), infer.ModelRef{Name: "adder"}, &Call{ID: "1", Request: r}, false)
		return err
	}
	for want, in := range map[string]oip.Shared{
		"Unable to find":   {Region: "y", Size: 8},
		"end behind":       {Region: "x", Offset: 9, Size: 8},
		"which has 16":     {Region: "x", Offset: math.MaxInt64 - 8, Size: 8},
		"4 in shared":      {Region: "x", Size: 4},
		"larger than 100":  {Region: "x", Size: 101},
		"larger than 100 ": {Region: "x", Size: math.MaxInt64},
	} {
		wantRefused(t, ask(&in, nil), want)
	}
	wantRefused(t, ask(nil, &oip.Shared{Region: "x", Size: 4}), "at least 8 bytes to hold the results")
	wantRefused(t, ask(nil, &oip.Shared{Region: "x", Offset: 12, Size: 8}), "end behind")
	wantRefused(t, ask(nil, &oip.Shared{Region: "y", Size: 8}), "Unable to find")
	if err := os.Truncate(filepath.Join(dir, "x"), 4); err != nil { // by its client, after it was registered
		t.Fatal(err)
	}
	wantRefused(t, ask(&oip.Shared{Region: "x", Size: 8}, nil), "has become shorter")
	wantRefused(t, ask(nil, &oip.Shared{Region: "x", Size: 8}), "has become shorter")
	if info, err := os.Stat(filepath.Join(dir, "x")); err != nil || info.Size() != 4 {
		t.Errorf("%v: it must not grow again", err)
	}
	if err := s.UnregisterRegion("x"); err != nil {
		t.Fatal(err)
	}
	wantRefused(t, ask(&oip.Shared{Region: "x", Size: 8}, nil), "Unable to find")
}

func TestSharedMemoryRegistration(t *testing.T) {
	_, s, dir := withMemory(t)
	object(t, dir, "x", make([]byte, 16))
	object(t, dir, "torch_1_2_3", make([]byte, 16))
	outside := filepath.Join(t.TempDir(), "secret")
	if err := os.WriteFile(outside, make([]byte, 16), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(outside, filepath.Join(dir, "link")); err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(filepath.Join(dir, "folder"), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := syscall.Mkfifo(filepath.Join(dir, "pipe"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, key := range []string{"", "/", "x", "/..", "/.", "../x", "/../x", "/a/../x", "//x", "/x\x00", "/link", "/folder", "/pipe", "/none", "/torch_1_2_3", "/" + strings.Repeat("n", 256)} {
		if err := s.RegisterRegion(Region{Name: "r", Key: key, ByteSize: 8}); err == nil {
			t.Errorf("%q is taken", key)
		} else {
			wantRefused(t, err, "failed to register")
		}
	}
	for _, r := range []Region{
		{Key: "/x", ByteSize: 8},
		{Name: "r", Key: "/x"},
		{Name: "r", Key: "/x", ByteSize: -1},
		{Name: "r", Key: "/x", Offset: -1, ByteSize: 8},
		{Name: "r", Key: "/x", Offset: 9, ByteSize: 8},
		{Name: "r", Key: "/x", ByteSize: 17},
		{Name: "r", Key: "/x", Offset: math.MaxInt64, ByteSize: math.MaxInt64},
	} {
		wantRefused(t, s.RegisterRegion(r), "failed to register")
	}
	if all, err := s.Regions(""); err != nil || len(all) != 0 {
		t.Errorf("%v %v", all, err)
	}
	good := Region{Name: "r", Key: "/x", Offset: 8, ByteSize: 8}
	if err := s.RegisterRegion(good); err != nil {
		t.Fatal(err)
	}
	wantRefused(t, s.RegisterRegion(good), "already in manager")
	all, err := s.Regions("r")
	if err != nil || !cmp.Equal(all, []Region{good}) {
		t.Errorf("%v %v", all, err)
	}
	if _, err := s.Regions("q"); err == nil {
		t.Error("there is no q")
	}
	if err := s.UnregisterRegion("q"); err != nil {
		t.Error(err)
	}
	if err := s.UnregisterRegion(""); err != nil {
		t.Error(err)
	}
	if all, err := s.Regions(""); err != nil || len(all) != 0 {
		t.Errorf("%v %v", all, err)
	}
}

func TestSharedMemoryIsOff(t *testing.T) {
	s := serve(t, newWorld())
	wantRefused(t, s.RegisterRegion(Region{Name: "r", Key: "/x", ByteSize: 8}), "not offered")
	r := request()
	r.Outputs = []oip.Requested{{Name: "X", Shared: &oip.Shared{Region: "r", Size: 8}}}
	_, err := s.Infer(t.Context(), infer.ModelRef{Name: "adder"}, &Call{Request: r}, false)
	wantRefused(t, err, "not offered")
	if all, err := s.Regions(""); err != nil || len(all) != 0 {
		t.Errorf("%v %v", all, err)
	}
	if err := s.UnregisterRegion(""); err != nil {
		t.Error(err)
	}
}

// FuzzRegion looks for regions that reach beyond their object.
func FuzzRegion(f *testing.F) {
	f.Add("/x", int64(0), int64(8), int64(0), int64(8))
	f.Add("/x", int64(1<<62), int64(1<<62), int64(1<<62), int64(1<<62))
	f.Add("/../x", int64(-1), int64(-1), int64(-1), int64(1))
	dir := f.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "x"), make([]byte, 16), 0o600); err != nil {
		f.Fatal(err)
	}
	f.Fuzz(func(t *testing.T, key string, offset, size, at, wanted int64) {
		m := &sharedMemory{dir: dir, regions: map[string]*region{}}
		r := Region{Name: "r", Key: key, Offset: offset, ByteSize: size}
		file, err := m.open(&r)
		if err != nil {
			return
		}
		defer func() { _ = file.Close() }()
		if offset < 0 || size <= 0 || offset > 16 || size > 16-offset {
			t.Fatalf("%+v is taken", r)
		}
		if at < 0 || wanted < 0 || m.add(&region{Region: r, file: file}) != nil {
			return
		}
		if _, err := m.find("t", &oip.Shared{Region: "r", Offset: at, Size: wanted}); err == nil && (at > size || wanted > size-at) {
			t.Fatalf("%d and %d are taken of %+v", at, wanted, r)
		}
	})
}
