package config

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"
)

// Option is one key of config.properties.
type Option struct {
	Key     string
	Section string
	Type    string // for the reader: integer, seconds, true or false …
	Default string
	Doc     string // one or a few sentences
	Env     []string
	Flag    string // of the torchserve command, "" for none
	Effect  Effect
	Secret  bool
	Opens   bool // it takes a protection away: it is never restored from a snapshot

	// set parses text into c. Nil for keys that are only accepted.
	set func(c *Config, text string) error
}

// Effect says what becomes of a key.
type Effect int

// The effects.
const (
	Works    Effect = iota
	JVMOnly         // it tuned TorchServe's Java process; accepted, and warned of once
	Pending         // TorchServe has it, Flambeau does not yet; accepted, and warned of when it is set
	Informal        // written by TorchServe itself or for others; accepted in silence
)

func envName(key string) []string {
	name := strings.ToUpper(key)
	if !strings.HasPrefix(name, "TS_") {
		name = "TS_" + name
	}
	return []string{name}
}

// fileOnly takes the variables away from an option that only the file can set.
func (o Option) fileOnly() Option {
	o.Env = nil
	return o
}

func (o Option) flag(name string) Option {
	o.Flag = name
	return o
}

func (o Option) effect(e Effect) Option {
	o.Effect = e
	return o
}

func (o Option) alsoEnv(name string) Option {
	o.Env = append(o.Env, name)
	return o
}

// opens marks an option that takes a protection away.
func (o Option) opens() Option {
	o.Opens = true
	return o
}

func (o Option) secret() Option {
	o.Secret = true
	return o
}

func text(key, def, doc string, field func(*Config) *string) Option {
	return Option{Key: key, Type: "text", Default: def, Doc: doc, Env: envName(key), set: func(c *Config, s string) error {
		*field(c) = s
		return nil
	}}
}

func oneOf(key, def, doc string, words []string, field func(*Config) *string) Option {
	return Option{Key: key, Type: strings.Join(words, ", "), Default: def, Doc: doc, Env: envName(key), set: func(c *Config, s string) error {
		word := strings.ToLower(strings.Join(strings.Fields(s), ""))
		if !slices.Contains(words, word) {
			*field(c) = def
			return tolerated(fmt.Sprintf("%q is none of %s; it is %s then", s, strings.Join(words, ", "), def))
		}
		*field(c) = word
		return nil
	}}
}

// choice is oneOf for keys of our own: another word is an error.
func choice(key, def, doc string, words []string, field func(*Config) *string) Option {
	return Option{Key: key, Type: strings.Join(words, ", "), Default: def, Doc: doc, Env: envName(key), set: func(c *Config, s string) error {
		word := strings.ToLower(strings.TrimSpace(s))
		if !slices.Contains(words, word) {
			return fmt.Errorf("%q is none of %s", s, strings.Join(words, ", "))
		}
		*field(c) = word
		return nil
	}}
}

func path(key, doc string, field func(*Config) *string) Option {
	o := text(key, "", doc, field)
	o.Type = "path"
	return o
}

// tolerated is a value that TorchServe replaces by another one: the server starts, and the user is told.
type tolerated string

func (t tolerated) Error() string { return string(t) }

// boolean takes true and false. Everything else is false, as in TorchServe, but not in silence.
func boolean(key string, def bool, doc string, field func(*Config) *bool) Option {
	return Option{Key: key, Type: "true or false", Default: strconv.FormatBool(def), Doc: doc, Env: envName(key), set: func(c *Config, s string) error {
		switch {
		case strings.EqualFold(s, "true"):
			*field(c) = true
		case strings.EqualFold(s, "false"):
			*field(c) = false
		default:
			*field(c) = false
			return tolerated(fmt.Sprintf("%q is neither true nor false, and is taken for false", s))
		}
		return nil
	}}
}

// negated is a boolean whose field says the opposite.
func negated(key string, def bool, doc string, field func(*Config) *bool) Option {
	o := boolean(key, def, doc, field)
	set := o.set
	o.set = func(c *Config, s string) error {
		err := set(c, s)
		*field(c) = !*field(c)
		return err
	}
	return o
}

// bounds of an integer, both allowed.
type bounds struct{ least, most int64 }

func atLeast(n int64) bounds { return bounds{n, math.MaxInt64} }

func (b bounds) parse(s string) (int64, error) {
	n, err := strconv.ParseInt(strings.TrimPrefix(s, "+"), 10, 64)
	if errors.Is(err, strconv.ErrRange) {
		return 0, fmt.Errorf("%q is out of range", s)
	}
	if err != nil {
		return 0, fmt.Errorf("%q is not an integer", s)
	}
	switch {
	case n < b.least && b.least == 0:
		return 0, fmt.Errorf("%d is negative", n)
	case n < b.least:
		return 0, fmt.Errorf("%d is below %d", n, b.least)
	case n > b.most:
		return 0, fmt.Errorf("%d is above %d", n, b.most)
	}
	return n, nil
}

func integer(key string, def int, b bounds, doc string, field func(*Config) *int) Option {
	if b.most > math.MaxInt32 {
		b.most = math.MaxInt32
	}
	return Option{Key: key, Type: "integer", Default: strconv.Itoa(def), Doc: doc, Env: envName(key), set: func(c *Config, s string) error {
		n, err := b.parse(s)
		if err == nil {
			*field(c) = int(n)
		}
		return err
	}}
}

func size(key string, def int64, b bounds, doc string, field func(*Config) *int64) Option {
	return Option{Key: key, Type: "bytes", Default: strconv.FormatInt(def, 10), Doc: doc, Env: envName(key), set: func(c *Config, s string) error {
		n, err := b.parse(s)
		if err == nil {
			*field(c) = n
		}
		return err
	}}
}

// span is an integer of time units. def is "" for a time that is not limited, which is 0 in the field.
func span(key, unitName string, unit time.Duration, def string, b bounds, doc string, field func(*Config) *time.Duration) Option {
	b.most = math.MaxInt64 / int64(unit)
	return Option{Key: key, Type: unitName, Default: def, Doc: doc, Env: envName(key), set: func(c *Config, s string) error {
		n, err := b.parse(s)
		if err == nil {
			*field(c) = time.Duration(n) * unit
		}
		return err
	}}
}

func seconds(key string, def int, b bounds, doc string, field func(*Config) *time.Duration) Option {
	return span(key, "seconds", time.Second, strconv.Itoa(def), b, doc, field)
}

func milliseconds(key, doc string, field func(*Config) *time.Duration) Option {
	return span(key, "milliseconds", time.Millisecond, "", atLeast(1), doc, field)
}

// millisecondsOr is milliseconds with a default, and 0 allowed.
func millisecondsOr(key string, def int64, doc string, field func(*Config) *time.Duration) Option {
	return span(key, "milliseconds", time.Millisecond, strconv.FormatInt(def, 10), atLeast(0), doc, field)
}

func address(key, def, doc string, ports defaultPorts, field func(*Config) *Address) Option {
	return Option{Key: key, Type: "address", Default: def, Doc: doc, Env: envName(key), set: func(c *Config, s string) error {
		a, err := parseAddress(s, ports)
		if err == nil {
			*field(c) = a
		}
		return err
	}}
}

// accepted is a key without an effect.
func accepted(key, typ, def, doc string, e Effect) Option {
	return Option{Key: key, Type: typ, Default: def, Doc: doc, Env: envName(key), Effect: e}
}
