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
	matchLimit = time.Second      // for finding one place
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

// finder divides a text into sections. It may not take longer than until.
type finder func(text string, until time.Time) ([]section, error)

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
	return func(text string, until time.Time) ([]section, error) { return matches(re, text, until) }, nil
}

func textFinder(wanted string) finder {
	return func(text string, _ time.Time) ([]section, error) {
		var all []section
		done := 0
		for {
			next := strings.Index(text[done:], wanted)
			if next < 0 {
				return appendSection(all, done, len(text), false), nil
			}
			all = appendSection(all, done, done+next, false)
			done += next + len(wanted)
			all = append(all, section{done - len(wanted), done, true})
		}
	}
}

// between finds the places between characters, and those before and behind all.
func between(text string, _ time.Time) ([]section, error) {
	all := make([]section, 0, 2*len(text)+1)
	for at, r := range text {
		end := at + utf8.RuneLen(r)
		all = append(all, section{at, at, true}, section{at, end, false})
	}
	return append(all, section{len(text), len(text), true}), nil
}

// runeFinder finds each character of a kind.
func runeFinder(is func(rune) bool) finder {
	return func(text string, _ time.Time) ([]section, error) {
		var all []section
		done := 0
		for at, r := range text {
			if !is(r) {
				continue
			}
			all = appendSection(all, done, at, false)
			done = at + utf8.RuneLen(r)
			all = append(all, section{at, done, true})
		}
		return appendSection(all, done, len(text), false), nil
	}
}

func appendSection(all []section, begin, end int, found bool) []section {
	if begin == end {
		return all
	}
	return append(all, section{begin, end, found})
}

// matches finds a regular expression. One that is empty counts, but not right behind another.
func matches(re *regexp2.Regexp, text string, until time.Time) ([]section, error) {
	runes := []rune(text)
	var all []section
	at, offset := 0, 0 // the same place, in characters and in bytes
	advance := func(to int) int {
		for ; at < to; at++ {
			offset += utf8.RuneLen(runes[at])
		}
		return offset
	}
	done, last := 0, -1
	late := false
	err := re.FindRunesMatches(runes, 0, func(m regexp2.MatchView) bool {
		if late = time.Now().After(until); late {
			return false
		}
		index, length, _ := m.GroupRange(0)
		if length == 0 && index == last {
			return true
		}
		last = index + length
		begin := advance(index)
		all = appendSection(all, done, begin, false)
		done = advance(last)
		all = append(all, section{begin, done, true})
		return true
	})
	if late || err != nil { // the engine's own words have the text in them
		return nil, ErrTooLong
	}
	return appendSection(all, done, len(text), false), nil
}

// behaviour makes pieces of sections: begins and ends, in order.
type behaviour func(all []section) []section

func behaviourOf(name string) (behaviour, error) {
	switch name {
	case "Removed":
		return func(all []section) (kept []section) {
			for _, s := range all {
				if !s.found {
					kept = append(kept, s)
				}
			}
			return kept
		}, nil
	case isolated:
		return func(all []section) []section { return all }, nil
	case "Contiguous":
		return contiguous, nil
	case "MergedWithPrevious":
		return mergedWithPrevious, nil
	case "MergedWithNext":
		return mergedWithNext, nil
	}
	return nil, fmt.Errorf("its behavior %q is none of Removed, Isolated, MergedWithPrevious, MergedWithNext, Contiguous", name)
}

// contiguous joins what was found side by side.
func contiguous(all []section) (joined []section) {
	before := false
	for _, s := range all {
		if n := len(joined); n > 0 && s.found == before {
			joined[n-1].end = s.end
		} else {
			joined = append(joined, s)
		}
		before = s.found
	}
	return joined
}

// mergedWithPrevious joins what was found to what is before it, unless that was found, too.
func mergedWithPrevious(all []section) (joined []section) {
	before := false
	for _, s := range all {
		if n := len(joined); n > 0 && s.found && !before {
			joined[n-1].end = s.end
		} else {
			joined = append(joined, s)
		}
		before = s.found
	}
	return joined
}

// mergedWithNext joins what was found to what is behind it, unless that was found, too.
func mergedWithNext(all []section) (joined []section) {
	for i, s := range all {
		n := len(joined)
		if n > 0 && all[i-1].found && !s.found {
			joined[n-1].end = s.end
		} else {
			joined = append(joined, s)
		}
	}
	return joined
}

// splitStep makes a step of the file's pre-tokenizers that finds places, Split, Digits or Punctuation.
func splitStep(find finder, name string, invert bool) (split, error) {
	join, err := behaviourOf(name)
	if err != nil {
		return nil, err
	}
	return func(p piece, until time.Time) ([]piece, error) {
		all, err := find(p.text, until)
		if err != nil {
			return nil, err
		}
		if invert {
			for i := range all {
				all[i].found = !all[i].found
			}
		}
		var pieces []piece
		for _, s := range join(all) {
			if s.begin < s.end {
				pieces = append(pieces, p.part(s.begin, s.end))
			}
		}
		return pieces, nil
	}, nil
}

func splitPattern(p *part) (split, error) {
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
func splitKind(p *part) (split, error) {
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

const isolated = "Isolated"
