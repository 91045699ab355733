package oipserver

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strconv"

	"github.com/flambeau-serve/flambeau/internal/fault"
)

// Logging changes what the server logs, while it runs.
type Logging interface {
	Settings() LogLevels
	Change(to LogLevels)
}

// LogLevels are what the server logs: each kind of line by itself.
type LogLevels struct {
	Info, Warning, Error bool
	Verbose              bool // lines for developers, too
	ISO8601              bool // times as ISO 8601 in UTC; else as TorchServe writes them
}

// The values of log_format.
const (
	formatDefault = "default"
	formatISO     = "ISO8601"
)

// LogSettings are what is logged, in Triton's words.
type LogSettings struct {
	File    string `json:"log_file"`
	Info    bool   `json:"log_info"`
	Warning bool   `json:"log_warning"`
	Error   bool   `json:"log_error"`
	Verbose uint32 `json:"log_verbose_level"` // 0 or 1
	Format  string `json:"log_format"`
}

// asStarted is what is logged when the server starts, as far as nobody has said otherwise.
var asStarted = LogLevels{Info: true, Warning: true, Error: true} //nolint:gochecknoglobals // a constant

func (s *Server) logLevels() LogLevels {
	if s.opts.Logging == nil {
		return asStarted
	}
	return s.opts.Logging.Settings()
}

// LogSettings says what is logged.
func (s *Server) LogSettings() LogSettings {
	l := s.logLevels()
	shown := LogSettings{Info: l.Info, Warning: l.Warning, Error: l.Error, Format: formatDefault}
	if l.Verbose {
		shown.Verbose = 1
	}
	if l.ISO8601 {
		shown.Format = formatISO
	}
	return shown
}

// ChangeLog changes what is logged. A setting of null is the one that the server started with.
func (s *Server) ChangeLog(changes map[string]json.RawMessage) error {
	s.changing.Lock()
	defer s.changing.Unlock()
	was := s.logLevels()
	want := was
	for _, name := range slices.Sorted(maps.Keys(changes)) {
		if err := changeLog(&want, s.startLog, name, changes[name]); err != nil {
			return err
		}
	}
	if want == was {
		return nil
	}
	if s.opts.Logging == nil {
		return fault.New(fault.BadRequest, "what this server logs is set when it is started", nil)
	}
	if err := s.mayChange("log settings"); err != nil {
		return err
	}
	s.opts.Logging.Change(want)
	return nil
}

func changeLog(want *LogLevels, start LogLevels, name string, value json.RawMessage) error {
	flag := func(of *bool, before bool) error {
		if isNull(value) {
			*of = before
			return nil
		}
		if err := json.Unmarshal(value, of); err != nil {
			return fault.Newf(fault.BadRequest, "the setting '%s' is %.40s, and has to be true or false", name, value)
		}
		return nil
	}
	switch name {
	case "log_info":
		return flag(&want.Info, start.Info)
	case "log_warning":
		return flag(&want.Warning, start.Warning)
	case "log_error":
		return flag(&want.Error, start.Error)
	case "log_verbose_level":
		if isNull(value) {
			want.Verbose = start.Verbose
			return nil
		}
		level, err := number(name, value)
		if err != nil || level < 0 {
			return fault.Newf(fault.BadRequest, "the setting 'log_verbose_level' is %.40s, and has to be 0, or 1 for all there is", value)
		}
		want.Verbose = level > 0
	case "log_format":
		var format string
		switch {
		case isNull(value):
			want.ISO8601 = start.ISO8601
		case json.Unmarshal(value, &format) != nil || format != formatDefault && format != formatISO:
			return fault.Newf(fault.BadRequest, "the setting 'log_format' is %.40s, and has to be \"default\" or \"ISO8601\"", value)
		default:
			want.ISO8601 = format == formatISO
		}
	case "log_file":
		var file string
		if !isNull(value) && (json.Unmarshal(value, &file) != nil || file != "") {
			return fault.New(fault.BadRequest, "log file location can not be updated through network protocol; it is set by LOG_LOCATION when the server is started", nil)
		}
	default:
		return fault.Newf(fault.BadRequest, "there is no log setting '%.100s'", name)
	}
	return nil
}

// mayChange refuses changes of the server by clients who may only infer.
func (s *Server) mayChange(what string) error {
	if s.opts.ModelAPI {
		return nil
	}
	f := fault.New(fault.MethodNotAllowed, what+" cannot be changed over the API of this server", nil)
	f.Hint = "Start it with enable_model_api=true (--enable-model-api)."
	return f
}

func isNull(value json.RawMessage) bool { return bytes.Equal(bytes.TrimSpace(value), []byte("null")) }

// number reads a setting that is a whole number, as such or as a text.
func number(name string, value json.RawMessage) (int64, error) {
	text := string(bytes.TrimSpace(value))
	var quoted string
	if json.Unmarshal(value, &quoted) == nil {
		text = quoted
	}
	n, err := strconv.ParseInt(text, 10, 64)
	if err != nil {
		return 0, fault.Newf(fault.BadRequest, "the setting '%s' is %.40s, and has to be a whole number", name, value)
	}
	return n, nil
}

// texts reads a setting that is a text or a list of texts.
func texts(name string, value json.RawMessage) ([]string, error) {
	var one string
	if json.Unmarshal(value, &one) == nil {
		return []string{one}, nil
	}
	var all []string
	if err := json.Unmarshal(value, &all); err != nil {
		return nil, fault.Newf(fault.BadRequest, "the setting '%s' is %.40s, and has to be a list of texts", name, value)
	}
	return all, nil
}

func oneText(name string, value json.RawMessage) (string, error) {
	all, err := texts(name, value)
	if err != nil || len(all) != 1 {
		return "", fault.New(fault.BadRequest, fmt.Sprintf("the setting '%s' has to be one text", name), err)
	}
	return all[0], nil
}
