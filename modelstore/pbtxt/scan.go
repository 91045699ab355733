package pbtxt

import (
	"fmt"
	"strings"
)

// field is one field as it is written: its name, where it stands, and what it holds if that is a message. The parser of the library knows no lines and
// leaves out what it does not know; this finds both.
type field struct {
	name string
	line int
	sub  []field
}

// maxNesting is how deep messages may lie in each other: no model's configuration comes near, and the parser of the library would follow any depth.
const maxNesting = 32

// scanner walks over a text. It is no judge of the text: the parser of the library refuses what is wrong.
type scanner struct {
	text string
	at   int
	line int
}

// scan lists the fields of a text. Its error is that of a text which is not to be given to the parser.
func scan(text string) ([]field, error) {
	s := &scanner{text: text, line: 1}
	return s.message(0)
}

// space skips white space, comments and what may stand between fields.
func (s *scanner) space(separators string) {
	for s.at < len(s.text) {
		c := s.text[s.at]
		switch {
		case c == '\n':
			s.line++
		case c == '#':
			end := strings.IndexByte(s.text[s.at:], '\n')
			if end < 0 {
				end = len(s.text) - s.at
			}
			s.at += end
			continue
		case c == ' ' || c == '\t' || c == '\r' || c == '\v' || c == '\f' || strings.IndexByte(separators, c) >= 0:
		default:
			return
		}
		s.at++
	}
}

func (s *scanner) peek() byte {
	if s.at < len(s.text) {
		return s.text[s.at]
	}
	return 0
}

// message reads fields up to the end of a message, which it leaves.
func (s *scanner) message(depth int) ([]field, error) {
	if depth > maxNesting {
		return nil, &Error{Line: s.line, Text: fmt.Sprintf("messages lie in each other more than %d deep", maxNesting)}
	}
	var all []field
	for {
		s.space(",;")
		if c := s.peek(); c == 0 || c == '}' || c == '>' || c == ']' {
			return all, nil
		}
		f := field{line: s.line}
		if f.name = s.word(); f.name == "" {
			s.at++ // the parser refuses it
			continue
		}
		s.space(":")
		var err error
		if f.sub, err = s.value(depth); err != nil {
			return nil, err
		}
		all = append(all, f)
	}
}

// word reads a name, number or word; a name in brackets, of an extension, as it is.
func (s *scanner) word() string {
	begin := s.at
	if s.peek() == '[' {
		if end := strings.IndexByte(s.text[s.at:], ']'); end >= 0 {
			s.line += strings.Count(s.text[s.at:s.at+end], "\n")
			s.at += end + 1
		}
		return s.text[begin:s.at]
	}
	for s.at < len(s.text) && strings.IndexByte(" \t\r\n\v\f{}<>[]:,;#\"'", s.text[s.at]) < 0 {
		s.at++
	}
	return s.text[begin:s.at]
}

// value skips a value, and gives the fields of a message or of all the messages of a list.
func (s *scanner) value(depth int) ([]field, error) {
	s.space("")
	switch c := s.peek(); c {
	case '{', '<':
		s.at++
		sub, err := s.message(depth + 1)
		s.close()
		return sub, err
	case '[':
		return s.list(depth)
	case '"', '\'':
		for s.peek() == '"' || s.peek() == '\'' { // texts side by side are one
			s.quoted()
			s.space("")
		}
	default:
		s.word()
		if c == '-' { // it may stand apart from its number
			s.space("")
			if s.text[s.at-1] == '-' {
				s.word()
			}
		}
	}
	return nil, nil
}

// close skips the end of a message or list.
func (s *scanner) close() {
	s.space("")
	if c := s.peek(); c == '}' || c == '>' || c == ']' {
		s.at++
	}
}

func (s *scanner) list(depth int) ([]field, error) {
	s.at++
	if depth > maxNesting {
		return nil, &Error{Line: s.line, Text: fmt.Sprintf("lists lie in each other more than %d deep", maxNesting)}
	}
	var all []field
	for {
		s.space(",")
		if c := s.peek(); c == 0 || c == ']' || c == '}' || c == '>' {
			s.close()
			return all, nil
		}
		before := s.at
		line := s.line
		sub, err := s.value(depth + 1)
		if err != nil {
			return nil, err
		}
		if sub != nil {
			all = append(all, field{name: member, line: line, sub: sub})
		}
		if s.at == before {
			s.at++
		}
	}
}

// member is the name of what holds the fields of one message of a list.
const member = "[]"

// quoted skips a text in quotes.
func (s *scanner) quoted() {
	quote := s.text[s.at]
	s.at++
	for s.at < len(s.text) {
		c := s.text[s.at]
		s.at++
		switch c {
		case '\\':
			s.at++
		case '\n': // not closed; the parser refuses it
			s.line++
			return
		case quote:
			return
		}
	}
	s.at = min(s.at, len(s.text))
}
