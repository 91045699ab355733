package tokenize

import (
	"errors"
	"fmt"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/dlclark/regexp2/v2"
)

// What a regular expression may take. Those of known models take a fraction of a second for a megabyte; what takes longer is a pattern that tries again and again, and
// a text that makes it do so.
const (
	matchLimit = 5 * time.Second  // for finding one place; a machine that is overloaded gives little of it
	textLimit  = 10 * time.Second // for one text
	stackLimit = 1 << 22          // places that it may return to
)

// ErrTooLong says that the tokenizer's regular expression takes too long for a text.
var ErrTooLong = errors.New("the regular expression of its tokenizer takes too long for this text")

// section is a part of a text, by its bytes, that a pattern has found, or what lies between two of these.
type section struct {
	begin, end int
	found      bool
}

// finder divides a text into sections and hands them on, in order, until it is told of an error. It may not take longer than until.
type finder func(text string, until time.Time, yield func(section) error) error

// finderOf reads a pattern of the file: a text, or a regular expression.
func finderOf(p *pattern) (finder, error) {
	switch {
	case p.String != nil && *p.String == "":
		return between, nil
	case p.String != nil:
		return textFinder(*p.String), nil
	case p.Regex == nil:
		return nil, errors.New("it has no pattern")
	}
	text, err := translated(*p.Regex)
	if err != nil {
		return nil, fmt.Errorf("its regular expression %q cannot be used here: %w", *p.Regex, err)
	}
	re, err := regexp2.Compile(text, regexp2.OptionMaxBacktrackingStackSize(stackLimit))
	if err != nil {
		return nil, fmt.Errorf("its regular expression %q cannot be used here: %w", *p.Regex, err)
	}
	re.MatchTimeout = matchLimit
	return func(text string, until time.Time, yield func(section) error) error {
		return matches(re, text, until, yield)
	}, nil
}

func textFinder(wanted string) finder {
	return func(text string, _ time.Time, yield func(section) error) error {
		done := 0
		for {
			next := strings.Index(text[done:], wanted)
			if next < 0 {
				return yieldOther(yield, done, len(text))
			}
			begin := done + next
			if err := yieldOther(yield, done, begin); err != nil {
				return err
			}
			done = begin + len(wanted)
			if err := yield(section{begin, done, true}); err != nil {
				return err
			}
		}
	}
}

// yieldOther hands on what lies between two places that were found, unless that is nothing.
func yieldOther(yield func(section) error, begin, end int) error {
	if begin == end {
		return nil
	}
	return yield(section{begin, end, false})
}

// between finds the places between characters, and those before and behind all.
func between(text string, _ time.Time, yield func(section) error) error {
	for at, r := range text {
		if err := yield(section{at, at, true}); err != nil {
			return err
		}
		if err := yield(section{at, at + utf8.RuneLen(r), false}); err != nil {
			return err
		}
	}
	return yield(section{len(text), len(text), true})
}

// runeFinder finds each character of a kind.
func runeFinder(is func(rune) bool) finder {
	return func(text string, _ time.Time, yield func(section) error) error {
		done := 0
		for at, r := range text {
			if !is(r) {
				continue
			}
			if err := yieldOther(yield, done, at); err != nil {
				return err
			}
			done = at + utf8.RuneLen(r)
			if err := yield(section{at, done, true}); err != nil {
				return err
			}
		}
		return yieldOther(yield, done, len(text))
	}
}

// matches finds a regular expression. One that is empty counts, but not right behind another.
func matches(re *regexp2.Regexp, text string, until time.Time, yield func(section) error) error {
	runes := []rune(text)
	at, offset := 0, 0 // the same place, in characters and in bytes
	advance := func(to int) int {
		for ; at < to; at++ {
			offset += utf8.RuneLen(runes[at])
		}
		return offset
	}
	done, last := 0, -1
	var refused error
	err := re.FindRunesMatches(runes, 0, func(m regexp2.MatchView) bool {
		if time.Now().After(until) {
			refused = ErrTooLong
			return false
		}
		index, length, _ := m.GroupRange(0)
		if length == 0 && index == last {
			return true
		}
		last = index + length
		begin := advance(index)
		if refused = yieldOther(yield, done, begin); refused != nil {
			return false
		}
		done = advance(last)
		refused = yield(section{begin, done, true})
		return refused == nil
	})
	switch {
	case refused != nil:
		return refused
	case err != nil: // the engine's own words have the text in them
		return ErrTooLong
	}
	return yieldOther(yield, done, len(text))
}

// joins says whether a section makes one piece with the one before it, by which of the two were found.
type joins func(before, found bool) bool

const (
	removed  = "Removed"
	isolated = "Isolated"
)

var behaviors = map[string]joins{ //nolint:gochecknoglobals // a table, never changed
	removed:              func(_, _ bool) bool { return false },
	isolated:             func(_, _ bool) bool { return false },
	"Contiguous":         func(before, found bool) bool { return before == found },
	"MergedWithPrevious": func(before, found bool) bool { return found && !before },
	"MergedWithNext":     func(before, found bool) bool { return before && !found },
}

// splitStep makes a step of the file's pre-tokenizers that finds places, Split, Digits or Punctuation.
func splitStep(find finder, behavior string, invert bool) (split, error) {
	joins, ok := behaviors[behavior]
	if !ok {
		return nil, fmt.Errorf("its behavior %q is none of Removed, Isolated, MergedWithPrevious, MergedWithNext, Contiguous", behavior)
	}
	return func(p piece, b bounds) ([]piece, error) {
		var pieces []piece
		var open section // what the next section may be joined to; at the beginning nothing, which it may be, too
		before := false
		done := func() {
			if open.begin < open.end && (!open.found || behavior != removed) {
				pieces = append(pieces, p.part(open.begin, open.end))
			}
		}
		err := find(p.text, b.until, func(s section) error {
			s.found = s.found != invert
			if joins(before, s.found) {
				open.end = s.end
			} else {
				done()
				open = s
			}
			before = s.found
			return nil
		})
		done()
		return pieces, err
	}, nil
}

func splitPattern(p *stage) (split, error) {
	find, err := finderOf(&p.Pattern)
	if err == nil {
		var do split
		if do, err = splitStep(find, p.Behavior, p.Invert); err == nil {
			return do, nil
		}
	}
	return nil, fmt.Errorf("its pre-tokenizer Split: %w", err)
}

// splitKind is Digits and Punctuation.
func splitKind(p *stage) (split, error) {
	is, name := unicode.IsNumber, "Contiguous"
	switch {
	case p.Type == "Punctuation":
		is, name = isPunctuation, p.Behavior
		if name == "" {
			name = isolated
		}
	case p.Individual:
		name = isolated
	}
	do, err := splitStep(runeFinder(is), name, false)
	if err != nil {
		return nil, fmt.Errorf("its pre-tokenizer %s: %w", p.Type, err)
	}
	return do, nil
}
