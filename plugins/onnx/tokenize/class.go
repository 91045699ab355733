package tokenize

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"unicode"
)

// class reads a class of characters; its [ has been read. Classes within it are joined to it, and && leaves what is in both of its sides.
func (o *oniguruma) class() (string, error) {
	if o.depth++; o.depth > maxDepth {
		return "", fmt.Errorf("more than %d classes within each other", maxDepth)
	}
	defer func() { o.depth-- }()
	negated := o.skips("^")
	if o.peek() == ']' {
		return "", errors.New("a class that begins with ]: write \\]")
	}
	sides := []side{{}}
	for {
		last := &sides[len(sides)-1]
		switch {
		case o.at >= len(o.in):
			return "", errors.New("a [ without its ]")
		case o.skips("]"):
			return assembled(sides, negated)
		case o.skips("&&"):
			if len(sides) > 1 {
				return "", errors.New("a second && in a class")
			}
			sides = append(sides, side{})
		case o.skips("["):
			if err := o.inner(last); err != nil {
				return "", err
			}
		default:
			if err := o.member(last); err != nil {
				return "", err
			}
		}
	}
}

// inner reads a class within one, or a set by its name. Its [ has been read.
func (o *oniguruma) inner(s *side) error {
	if o.peek() == ':' {
		return o.posix(s)
	}
	inner, err := o.class()
	s.classes = append(s.classes, inner)
	return err
}

// posix reads :name:], a set by its name. Its [ has been read.
func (o *oniguruma) posix(s *side) error {
	rest := o.in[o.at+1:]
	length := slices.Index(rest, ':')
	if length < 0 || length+1 >= len(rest) || rest[length+1] != ']' {
		return errors.New("[: without its :]")
	}
	name, not := strings.CutPrefix(string(rest[:length]), "^")
	members, ok := posixSets[name]
	if !ok {
		return fmt.Errorf("[:%s:] is not known here", name)
	}
	o.at += 1 + length + 2
	return o.set(s, set{members, not})
}

// side is what stands on one side of && in a class, or all of the class: characters and ranges, sets, those of all but a set, and whole classes.
type side struct {
	members  string
	positive string
	negated  []string
	classes  []string
}

// member reads a character, a range of them, or a set.
func (o *oniguruma) member(s *side) error {
	from, set, err := o.one()
	if err != nil {
		return err
	}
	if set.members != "" {
		return o.set(s, set)
	}
	to := from
	if o.peek() == '-' && o.at+1 < len(o.in) && o.in[o.at+1] != ']' {
		o.at++
		if o.peek() == '[' || o.peek() == '&' {
			return errors.New("a range without its end")
		}
		if to, set, err = o.one(); err != nil {
			return err
		}
		if set.members != "" || to < from {
			return errors.New("a range whose end is not behind its begin")
		}
	}
	if !o.fold {
		s.span(from, to)
		return nil
	}
	if to > unicode.MaxASCII {
		return errors.New("a class with more than ASCII where capitals do not count")
	}
	for c := from; c <= to; c++ {
		for _, other := range orbit(c) {
			s.span(other, other)
		}
	}
	return nil
}

// set adds a set to a class.
func (o *oniguruma) set(s *side, added set) error {
	switch {
	case o.fold:
		return errors.New("a set in a class where capitals do not count")
	case added.negated:
		s.negated = append(s.negated, added.members)
	default:
		s.positive += added.members
	}
	return nil
}

func (s *side) span(from, to rune) {
	s.members += quoted(from)
	if to > from {
		s.members += "-" + quoted(to)
	}
}

// one reads a character of a class, or a set.
func (o *oniguruma) one() (c rune, found set, err error) {
	c = o.in[o.at]
	o.at++
	if c != '\\' {
		return c, set{}, nil
	}
	if o.peek() == 'b' { // a backspace, in a class only
		o.at++
		return '\b', set{}, nil
	}
	found, c, err = o.escaped()
	return c, found, err
}

// anything is any character.
const anything = `[\s\S]`

// assembled writes the class of its sides.
func assembled(sides []side, negated bool) (string, error) {
	if members, simple := sides[0].simple(); simple && len(sides) == 1 {
		if negated {
			return "[^" + members + "]", nil
		}
		return "[" + members + "]", nil
	}
	var texts []string
	for i := range sides {
		text, err := sides[i].text()
		if err != nil {
			return "", err
		}
		texts = append(texts, text)
	}
	text := texts[0]
	if len(texts) > 1 {
		text = "(?:(?=" + texts[0] + ")" + texts[1] + ")"
	}
	if negated {
		text = "(?:(?!" + text + ")" + anything + ")"
	}
	return text, nil
}

// simple gives what stands in the brackets, if one class is enough. The engine stops at the first set that a character is not to be of, so such a set stands alone.
func (s *side) simple() (string, bool) {
	members := s.members + s.positive
	switch {
	case len(s.classes) > 0 || len(s.negated) > 1:
		return "", false
	case len(s.negated) == 0:
		return members, members != ""
	}
	other, ok := opposite(s.negated[0])
	return members + other, ok && s.positive == ""
}

// opposite writes the escape for all but what an escape stands for, if that is one.
func opposite(members string) (string, bool) {
	if members == `\s` {
		return `\S`, true
	}
	name, ok := strings.CutPrefix(members, `\p{`)
	return `\P{` + name, ok && strings.IndexByte(name, '}') == len(name)-1
}

// text writes a side as an expression of one character.
func (s *side) text() (string, error) {
	if members, ok := s.simple(); ok {
		return "[" + members + "]", nil
	}
	var all []string
	if s.members+s.positive != "" {
		all = append(all, "["+s.members+s.positive+"]")
	}
	for _, set := range s.negated {
		all = append(all, "(?:(?!["+set+"])"+anything+")")
	}
	all = append(all, s.classes...)
	switch len(all) {
	case 0:
		return "", errors.New("a side of && without anything")
	case 1:
		return all[0], nil
	}
	return "(?:" + strings.Join(all, "|") + ")", nil
}
