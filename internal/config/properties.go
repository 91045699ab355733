package config

import (
	"fmt"
	"strconv"
	"strings"
	"unicode/utf16"
	"unicode/utf8"
)

// property is one key of a properties file. Line is where it begins, counted from 1.
type property struct {
	key, value string
	line       int
}

// parseProperties reads Java's properties syntax. The file is taken for UTF-8 if it is that, else for ISO 8859-1, which Java always takes.
func parseProperties(data []byte) ([]property, error) {
	text := strings.TrimPrefix(string(data), "\ufeff")
	if !utf8.ValidString(text) {
		text = fromLatin1(text)
	}
	lines := naturalLines(text)
	var props []property
	for i := 0; i < len(lines); i++ {
		line := strings.TrimLeft(lines[i], blanks)
		if line == "" || line[0] == '#' || line[0] == '!' {
			continue
		}
		first := i + 1
		for isContinued(line) {
			line = line[:len(line)-1]
			if i+1 == len(lines) {
				break
			}
			i++
			line += strings.TrimLeft(lines[i], blanks)
		}
		p, err := parseLine(line)
		if err != nil {
			return nil, fmt.Errorf("line %d: %w", first, err)
		}
		p.line = first
		props = append(props, p)
	}
	return props, nil
}

const blanks = " \t\f"

func fromLatin1(s string) string {
	var b strings.Builder
	for i := range len(s) {
		b.WriteRune(rune(s[i]))
	}
	return b.String()
}

// naturalLines splits at \n, \r and \r\n.
func naturalLines(text string) []string {
	return strings.Split(strings.NewReplacer("\r\n", "\n", "\r", "\n").Replace(text), "\n")
}

// isContinued says whether an odd number of backslashes ends the line.
func isContinued(line string) bool {
	n := len(line) - len(strings.TrimRight(line, `\`))
	return n%2 == 1
}

// parseLine takes a logical line apart: the key ends at the first separator that is not escaped.
func parseLine(line string) (property, error) {
	end := 0
	for end < len(line) && !strings.ContainsRune(blanks+"=:", rune(line[end])) {
		if line[end] == '\\' {
			end++
		}
		end++
	}
	end = min(end, len(line))
	rest := strings.TrimLeft(line[end:], blanks)
	if rest != "" && (rest[0] == '=' || rest[0] == ':') {
		rest = strings.TrimLeft(rest[1:], blanks)
	}
	key, err := unescape(line[:end])
	if err != nil {
		return property{}, err
	}
	value, err := unescape(rest)
	if err != nil {
		return property{}, fmt.Errorf("the value of %s: %w", key, err)
	}
	return property{key: key, value: value}, nil
}

// unescape resolves backslashes. An unknown escape is the character itself.
func unescape(s string) (string, error) {
	if !strings.Contains(s, `\`) {
		return s, nil
	}
	var b strings.Builder
	var units []uint16 // of \u escapes in a row, which may form surrogate pairs
	flush := func() {
		b.WriteString(string(utf16.Decode(units)))
		units = units[:0]
	}
	for i := 0; i < len(s); i++ {
		if s[i] != '\\' || i+1 == len(s) {
			flush()
			if s[i] != '\\' {
				b.WriteByte(s[i])
			}
			continue
		}
		i++
		if s[i] == 'u' {
			if i+5 > len(s) {
				return "", fmt.Errorf(`%q is no \uXXXX`, s[i-1:])
			}
			n, err := strconv.ParseUint(s[i+1:i+5], 16, 16)
			if err != nil {
				return "", fmt.Errorf(`%q is no \uXXXX`, s[i-1:i+5])
			}
			units = append(units, uint16(n))
			i += 4
			continue
		}
		flush()
		b.WriteByte(control(s[i]))
	}
	flush()
	return b.String(), nil
}

func control(c byte) byte {
	switch c {
	case 't':
		return '\t'
	case 'n':
		return '\n'
	case 'r':
		return '\r'
	case 'f':
		return '\f'
	}
	return c
}
