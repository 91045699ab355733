package snapshot

import (
	"bytes"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"time"
	"unicode/utf16"
)

// Kind is why a snapshot was written.
type Kind string

// The kinds, with TorchServe's words.
const (
	Startup  Kind = "startup"  // the server is up
	Changed  Kind = "snapshot" // models were changed
	Shutdown Kind = "shutdown" // the server ends
)

// Setting is one key of config.properties.
type Setting struct{ Key, Value string }

// Model is one version.
type Model struct {
	Name, Version string
	Default       bool
	File          string // marName: a file or folder of the model store

	MinWorkers, MaxWorkers, BatchSize              int
	MaxBatchDelay, ResponseTimeout, StartupTimeout time.Duration
	Runtime                                        string
	ParallelLevel                                  int    // 0 when it is not parallel
	Handler                                        string // that its registration asked for, which TorchServe forgets; "" for the archive's
}

// wireModel is a version as model_snapshot has it, in TorchServe's order.
type wireModel struct {
	Default         bool   `json:"defaultVersion"`
	File            string `json:"marName"`
	MinWorkers      int    `json:"minWorkers"`
	MaxWorkers      int    `json:"maxWorkers"`
	BatchSize       int    `json:"batchSize"`
	MaxBatchDelay   int64  `json:"maxBatchDelay"`
	ResponseTimeout int64  `json:"responseTimeout"`
	StartupTimeout  int64  `json:"startupTimeout"`
	Runtime         string `json:"runtimeType"`
	ParallelLevel   int    `json:"parallelLevel,omitempty"`
	Handler         string `json:"handler,omitempty"`
}

// wireSnapshot is model_snapshot.
type wireSnapshot struct {
	Name    string                          `json:"name"`
	Count   int                             `json:"modelCount"` // of versions
	Created int64                           `json:"created"`    // milliseconds since 1970
	Models  map[string]map[string]wireModel `json:"models"`
}

const (
	firstLine = "#Flambeau snapshot"
	lastLine  = "#end of snapshot"
	modelKey  = "model_snapshot"
)

// encode gives the content of the file of that name.
func encode(name string, at time.Time, settings []Setting, models []Model) ([]byte, error) {
	s := wireSnapshot{Name: name, Count: len(models), Created: at.UnixMilli(), Models: map[string]map[string]wireModel{}}
	for _, m := range models {
		if s.Models[m.Name] == nil {
			s.Models[m.Name] = map[string]wireModel{}
		}
		s.Models[m.Name][m.Version] = wireModel{
			Default: m.Default, File: m.File, MinWorkers: m.MinWorkers, MaxWorkers: m.MaxWorkers, BatchSize: m.BatchSize,
			MaxBatchDelay: whole(m.MaxBatchDelay, time.Millisecond), ResponseTimeout: whole(m.ResponseTimeout, time.Second),
			StartupTimeout: whole(m.StartupTimeout, time.Second), Runtime: m.Runtime, ParallelLevel: m.ParallelLevel, Handler: m.Handler,
		}
	}
	var text bytes.Buffer
	encoder := json.NewEncoder(&text)
	encoder.SetEscapeHTML(false)
	encoder.SetIndent("", "  ")
	if err := encoder.Encode(s); err != nil {
		return nil, fmt.Errorf("the models: %w", err)
	}
	var b bytes.Buffer
	b.WriteString(firstLine + "\n#" + at.Format(time.UnixDate) + "\n")
	for _, setting := range append(slices.Clip(settings), Setting{modelKey, strings.TrimSpace(text.String())}) {
		b.WriteString(escape(setting.Key, true) + "=" + escape(setting.Value, false) + "\n")
	}
	b.WriteString(lastLine + "\n")
	return b.Bytes(), nil
}

// whole gives a duration in units, a part of one for a whole one: no limit becomes shorter.
func whole(d, unit time.Duration) int64 { return int64((d + unit - 1) / unit) }

// escape writes a key or a value of a properties file. The result is ASCII: TorchServe itself writes UTF-8, and reads it back as ISO 8859-1.
func escape(s string, key bool) string {
	var b strings.Builder
	for i, r := range s {
		switch {
		case r == ' ' && (key || i == 0):
			b.WriteString(`\ `)
		case strings.ContainsRune(`\=:#!`, r):
			b.WriteString(`\` + string(r))
		case r == '\t':
			b.WriteString(`\t`)
		case r == '\n':
			b.WriteString(`\n`)
		case r == '\r':
			b.WriteString(`\r`)
		case r == '\f':
			b.WriteString(`\f`)
		case r < ' ' || r > '~':
			for _, unit := range utf16.Encode([]rune{r}) {
				fmt.Fprintf(&b, `\u%04X`, unit)
			}
		default:
			b.WriteRune(r)
		}
	}
	return b.String()
}

// isOwn says whether Flambeau has written a file that begins with data.
func isOwn(data []byte) bool { return bytes.HasPrefix(data, []byte(firstLine+"\n")) }

// complete says whether a file has its end.
func complete(data []byte) bool {
	if isOwn(data) {
		return bytes.HasSuffix(bytes.TrimSuffix(data, []byte("\n")), []byte("\n"+lastLine))
	}
	return bytes.HasSuffix(data, []byte("\n")) // Java ends each line
}
