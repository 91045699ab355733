package telemetry

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/flambeau-serve/flambeau/internal/fault"
)

// SystemOptions say how the machine is looked at.
type SystemOptions struct {
	Interval time.Duration // required: how often (TorchServe's metric_time_interval)
	Proc     string        // where the proc file system is; "" means /proc
	Disk     string        // a path on the file system that counts; "" means /
}

const (
	megabyte = 1 << 20
	gigabyte = 1 << 30
)

// CollectSystem sets the machine's CPU, memory and disk gauges at once and then at each interval, until ctx ends. It returns nil
// then, and an error when the options are wrong. What cannot be read is logged once and left out.
func (m *Metrics) CollectSystem(ctx context.Context, opts SystemOptions) error {
	if opts.Interval <= 0 {
		return errors.New("system metrics need an interval above zero")
	}
	if opts.Proc == "" {
		opts.Proc = "/proc"
	}
	if opts.Disk == "" {
		opts.Disk = "/"
	}
	tick := time.NewTicker(opts.Interval)
	defer tick.Stop()
	var before cpuTimes
	failed := false
	for {
		var now cpuTimes
		var err error
		if bug := fault.Contain("the machine was measured", func() { now, err = m.collectOnce(opts, before) }); bug != nil {
			m.Panicked(PartOther)
			m.log.ErrorContext(ctx, "the server has a bug, which was contained: report it", slog.String(KeyError, bug.Error()), slog.String(KeyDetail, fault.DetailOf(bug)))
		}
		before = now
		if err != nil && !failed {
			failed = true
			m.log.WarnContext(ctx, "some system metrics cannot be read", slog.String(KeyError, err.Error()))
		}
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
	}
}

func (m *Metrics) collectOnce(opts SystemOptions, before cpuTimes) (cpuTimes, error) {
	now, cpuErr := readCPU(filepath.Join(opts.Proc, "stat"))
	if cpuErr == nil {
		m.setHost(CPUUtilization, now.since(before))
	}
	total, available, memErr := readMemory(filepath.Join(opts.Proc, "meminfo"))
	if memErr == nil {
		m.setHost(MemoryUsed, (total-available)/megabyte)
		m.setHost(MemoryAvailable, available/megabyte)
		m.setHost(MemoryUtilization, percent(total-available, total))
	}
	var fs syscall.Statfs_t
	diskErr := syscall.Statfs(opts.Disk, &fs)
	if diskErr == nil {
		block := float64(fs.Bsize)
		used, free := float64(fs.Blocks-fs.Bfree)*block, float64(fs.Bavail)*block
		m.setHost(DiskUsage, used/gigabyte)
		m.setHost(DiskAvailable, free/gigabyte)
		m.setHost(DiskUtilization, percent(used, used+free))
	}
	return now, errors.Join(cpuErr, memErr, diskErr)
}

func (m *Metrics) setHost(name string, value float64) { m.set(name, value, levelHost, m.opts.Hostname) }

// percent is rounded to a tenth, as TorchServe's is.
func percent(part, whole float64) float64 {
	if whole <= 0 {
		return 0
	}
	return math.Round(part/whole*1000) / 10
}

// cpuTimes are all the processors' times since the machine's start, in ticks.
type cpuTimes struct{ busy, total float64 }

// since is how busy the processors have been since an earlier look, in percent.
func (t cpuTimes) since(before cpuTimes) float64 {
	return percent(t.busy-before.busy, t.total-before.total)
}

// readCPU reads the line of /proc/stat that is about all the processors.
func readCPU(path string) (cpuTimes, error) {
	f, err := os.Open(path)
	if err != nil {
		return cpuTimes{}, fmt.Errorf("processor times: %w", err)
	}
	defer func() { _ = f.Close() }()
	line, err := bufio.NewReader(f).ReadString('\n')
	if err != nil && !errors.Is(err, io.EOF) {
		return cpuTimes{}, fmt.Errorf("processor times: %w", err)
	}
	fields := strings.Fields(line)
	const idle, ioWait, counted = 4, 5, 9 // the times of guests are in those of users already
	if len(fields) <= ioWait || fields[0] != "cpu" {
		return cpuTimes{}, fmt.Errorf("processor times: %s does not begin with them", path)
	}
	var t cpuTimes
	for i, text := range fields[1:min(len(fields), counted)] {
		v, err := strconv.ParseFloat(text, 64)
		if err != nil {
			return cpuTimes{}, fmt.Errorf("processor times: %w", err)
		}
		t.total += v
		if i+1 != idle && i+1 != ioWait {
			t.busy += v
		}
	}
	return t, nil
}

// readMemory reads how much memory there is and how much programs may still have, in bytes.
func readMemory(path string) (total, available float64, err error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return 0, 0, fmt.Errorf("memory: %w", err)
	}
	values := map[string]float64{}
	for line := range strings.Lines(string(text)) {
		name, rest, _ := strings.Cut(line, ":")
		if fields := strings.Fields(rest); len(fields) > 0 {
			if kb, err := strconv.ParseFloat(fields[0], 64); err == nil {
				values[name] = kb * 1024
			}
		}
	}
	total, available = values["MemTotal"], values["MemAvailable"]
	if total <= 0 || available <= 0 {
		return 0, 0, fmt.Errorf("memory: %s does not say MemTotal and MemAvailable", path)
	}
	return total, available, nil
}
