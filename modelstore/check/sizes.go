package check

import (
	"bufio"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
)

// weightsBytes sums the files that a model of this archive is likely to hold in memory.
func (s *subject) weightsBytes() int64 {
	total := int64(0)
	for _, f := range s.files {
		switch lowerExt(f.path) {
		case ".pt", ".pth", ".bin", ".safetensors", ".onnx", ".data", ".ckpt", ".gguf", ".h5", ".pb", ".npz", ".npy", ".joblib", ".pkl", ".engine", ".tflite":
			total += f.size
		default:
			if f.path == s.archive.Manifest.Model.SerializedFile {
				total += f.size
			}
		}
	}
	return total
}

// smallModel is what nobody runs out of memory for.
const smallModel = 64 << 20

// sizes compares the archive with the memory and the disk of this machine.
func (s *subject) sizes(o *Options) {
	weights := s.weightsBytes()
	workers := s.workers(o)
	onGPU := o.GPUs != nil && *o.GPUs > 0 && s.archive.Settings.DeviceType != "cpu"
	memory := o.MemoryBytes
	if memory == 0 {
		memory = availableMemory()
	}
	if need := weights * int64(workers); weights > smallModel && memory > 0 && need > memory && !onGPU {
		hint := "serve it on a machine with more memory"
		if fit := memory / weights; fit > 0 {
			hint = fmt.Sprintf("%s would fit: set minWorkers and maxWorkers to %d", plural(int(fit), "worker"), fit)
		}
		s.found.add(severity(weights > memory), MemoryShort, "", 0, hint, "its weights take %s in each of %s, %s in all, and %s are left",
			size(weights), plural(workers, "worker"), size(need), size(memory))
	}
	if o.TempDir == "" || s.archive.InPlace {
		return
	}
	total := int64(0)
	for _, f := range s.files {
		total += f.size
	}
	if free, ok := freeDisk(o.TempDir); ok && total > smallModel && free < total {
		s.found.add(Warning, DiskShort, "", 0, "make room there, or set TEMP to a folder with more",
			"unpacked it takes %s, and %s has %s left: a second version would not fit beside it", size(total), o.TempDir, size(free))
	}
}

func (s *subject) workers(o *Options) int {
	if least, _, ok := s.archive.Settings.Workers(); ok {
		return least
	}
	return max(1, o.Workers)
}

func size(n int64) string {
	const gib, mib = 1 << 30, 1 << 20
	if n >= gib {
		return fmt.Sprintf("%.1f GiB", float64(n)/gib)
	}
	return fmt.Sprintf("%d MiB", n/mib)
}

// availableMemory is what this process's cgroup and the machine leave, whichever is less; 0 when neither says.
func availableMemory() int64 {
	least := int64(0)
	take := func(n int64, ok bool) {
		if ok && (least == 0 || n < least) {
			least = n
		}
	}
	take(memAvailable("/proc/meminfo"))
	for _, g := range []struct{ limit, used string }{
		{"/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory.current"},
		{"/sys/fs/cgroup/memory/memory.limit_in_bytes", "/sys/fs/cgroup/memory/memory.usage_in_bytes"},
	} {
		limit, ok := readNumber(g.limit)
		used, ok2 := readNumber(g.used)
		const unlimited = 1 << 50 // cgroup v1 writes a huge number
		if ok && ok2 && limit < unlimited {
			// What the cgroup uses is page cache as well, most of which can be given up.
			take(max(limit-used/2, 1), true)
		}
	}
	return least
}

func memAvailable(path string) (int64, bool) {
	file, err := os.Open(path)
	if err != nil {
		return 0, false
	}
	defer func() { _ = file.Close() }() // it was only read from
	for lines := bufio.NewScanner(file); lines.Scan(); {
		if rest, ok := strings.CutPrefix(lines.Text(), "MemAvailable:"); ok {
			kib, err := strconv.ParseInt(strings.TrimSpace(strings.TrimSuffix(strings.TrimSpace(rest), "kB")), 10, 64)
			return kib << 10, err == nil
		}
	}
	return 0, false
}

func readNumber(path string) (int64, bool) {
	text, err := os.ReadFile(path)
	if err != nil {
		return 0, false
	}
	n, err := strconv.ParseInt(strings.TrimSpace(string(text)), 10, 64)
	return n, err == nil && n > 0
}

func freeDisk(dir string) (int64, bool) {
	var fs syscall.Statfs_t
	if err := syscall.Statfs(filepath.Clean(dir), &fs); err != nil {
		return 0, false
	}
	return int64(fs.Bavail) * fs.Bsize, true
}
