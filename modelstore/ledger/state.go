package ledger

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"time"
)

// State is what the server is to remember about the models beyond what the store says. Its maps are never nil.
type State struct {
	// Ignored are entries of the store that are not loaded again until they change, by their path in the store.
	Ignored map[string]Ignored `json:"ignored"`
	// Defaults are the default versions that were set by hand, by model.
	Defaults map[string]string `json:"defaults"`
	// Earlier are the default versions before the present ones, by model, to which a rollback in a folder of versions goes.
	Earlier map[string]string `json:"earlier"`
	// Traffic are the labels and weights of a model, by its name, as modelstore/rollout writes them.
	Traffic map[string]json.RawMessage `json:"traffic"`
	// Kept are earlier archives that a rollback can go back to, the oldest first.
	Kept []Kept `json:"kept"`
	// Pinned are archives that are to be served instead of the store's, by "model/version".
	Pinned map[string]Pinned `json:"pinned"`
	// Scaled are numbers of workers that were set through the API, by "model/version".
	Scaled map[string]Scale `json:"scaled"`
}

// Ignored is an entry of the store that is left alone as long as it has this digest.
type Ignored struct {
	Digest string    `json:"digest"`
	Why    string    `json:"why"`
	Since  time.Time `json:"since"`
}

// Kept is an earlier archive of a version.
type Kept struct {
	Model   string    `json:"model"`
	Version string    `json:"version"`
	Digest  string    `json:"digest"`
	Dir     string    `json:"dir"`
	Source  string    `json:"source"`
	At      time.Time `json:"at"`
}

// Pinned is an archive that is served instead of the store's.
type Pinned struct {
	Digest string    `json:"digest"`
	Dir    string    `json:"dir"`
	Why    string    `json:"why"`
	Since  time.Time `json:"since"`
}

// Scale is a number of workers.
type Scale struct {
	Min int `json:"min"`
	Max int `json:"max"`
}

// clone gives a copy that shares nothing that is ever changed.
func (s *State) clone() *State {
	c := &State{
		Ignored: maps.Clone(s.Ignored), Defaults: maps.Clone(s.Defaults), Earlier: maps.Clone(s.Earlier), Traffic: maps.Clone(s.Traffic),
		Kept: slices.Clone(s.Kept), Pinned: maps.Clone(s.Pinned), Scaled: maps.Clone(s.Scaled),
	}
	for model, raw := range c.Traffic {
		c.Traffic[model] = bytes.Clone(raw)
	}
	c.fill()
	return c
}

// fill makes the maps that are not there.
func (s *State) fill() {
	if s.Ignored == nil {
		s.Ignored = map[string]Ignored{}
	}
	if s.Defaults == nil {
		s.Defaults = map[string]string{}
	}
	if s.Earlier == nil { // also in files of before it was kept
		s.Earlier = map[string]string{}
	}
	if s.Traffic == nil {
		s.Traffic = map[string]json.RawMessage{}
	}
	if s.Pinned == nil {
		s.Pinned = map[string]Pinned{}
	}
	if s.Scaled == nil {
		s.Scaled = map[string]Scale{}
	}
}

// stateFormat is the format of state.json; a later one is not touched.
const stateFormat = 1

// stateFile is what state.json holds.
type stateFile struct {
	Format int   `json:"format"`
	State  State `json:"state"`
}

func encodeState(s *State) ([]byte, error) {
	data, err := json.MarshalIndent(stateFile{stateFormat, *s}, "", "  ")
	if err != nil {
		return nil, fmt.Errorf("the state: %w", err)
	}
	return append(data, '\n'), nil
}

// decodeState reads state.json as a whole: half a file is an error, and never half a state.
func decodeState(data []byte) (*State, error) {
	decoder := json.NewDecoder(bytes.NewReader(data))
	var file stateFile
	if err := decoder.Decode(&file); err != nil {
		return nil, err
	}
	if _, err := decoder.Token(); !errors.Is(err, io.EOF) {
		return nil, errors.New("something follows the state")
	}
	if file.Format != stateFormat {
		return nil, fmt.Errorf("its format is %d, and not %d", file.Format, stateFormat)
	}
	file.State.fill()
	return &file.State, nil
}
