package httpapi

import (
	"strings"
	"unicode/utf8"

	"github.com/flambeau-serve/flambeau/internal/fault"
)

// maxParams is how many query parameters TorchServe reads.
const maxParams = 1024

// pair is one query parameter.
type pair struct{ name, value string }

// pathOf decodes the path of a request target: all of it at once, before it is split, so that an escaped slash splits too.
func pathOf(target string) (string, error) {
	return unescape(target, 0, pathEnd(target), false)
}

// pathEnd is where the query or the fragment begins.
func pathEnd(target string) int {
	if i := strings.IndexAny(target, "?#"); i >= 0 {
		return i
	}
	return len(target)
}

// segmentsOf splits a path as TorchServe does: before the first slash is a segment too, and empty ones at the end vanish.
func segmentsOf(path string) []string {
	segments := strings.Split(path, "/")
	for len(segments) > 0 && segments[len(segments)-1] == "" {
		segments = segments[:len(segments)-1]
	}
	return segments
}

// queryOf decodes the query of a request target. Both & and ; part parameters.
func queryOf(target string) ([]pair, error) {
	from, end := pathEnd(target), len(target)
	if from < end && target[from] == '?' {
		from++
	}
	if hash := strings.IndexByte(target[from:], '#'); hash >= 0 {
		end = from + hash
	}
	var params []pair
	for from < end && len(params) < maxParams {
		to := end
		if n := strings.IndexAny(target[from:end], "&;"); n >= 0 {
			to = from + n
		}
		p, ok, err := pairOf(target, from, to)
		if err != nil {
			return nil, err
		}
		if ok {
			params = append(params, p)
		}
		from = to + 1
	}
	return params, nil
}

// pairOf decodes the parameter target[from:to]. An = before the name is dropped; without a name there is no parameter.
func pairOf(target string, from, to int) (p pair, ok bool, err error) {
	for from < to && target[from] == '=' {
		from++
	}
	if from == to {
		return p, false, nil
	}
	value := to
	if n := strings.IndexByte(target[from:to], '='); n >= 0 {
		value = from + n
	}
	if p.name, err = unescape(target, from, value, true); err != nil {
		return p, false, err
	}
	if value < to {
		p.value, err = unescape(target, value+1, to, true)
	}
	return p, true, err
}

// unescape percent-decodes s[from:to]. Its errors are those of TorchServe's decoder, words included; bytes that are no UTF-8
// become U+FFFD as in Java.
func unescape(s string, from, to int, plusIsBlank bool) (string, error) {
	part := s[from:to]
	special := "%"
	if plusIsBlank {
		special = "%+"
	}
	if !strings.ContainsAny(part, special) {
		return part, nil
	}
	var out strings.Builder
	out.Grow(len(part))
	var run []byte // of escaped bytes, decoded together
	for i := from; i < to; i++ {
		c := s[i]
		if c != '%' {
			if c == '+' && plusIsBlank {
				c = ' '
			}
			out.WriteByte(c)
			continue
		}
		for run = run[:0]; i < to && s[i] == '%'; i += 3 {
			if i+3 > to {
				return "", fault.Newf(fault.BadEscape, "unterminated escape sequence at index %d of: %s", utf8.RuneCountInString(s[:i]), s)
			}
			high, low := unhex(s[i+1]), unhex(s[i+2])
			if high < 0 || low < 0 {
				return "", fault.Newf(fault.BadEscape, "invalid hex byte '%s' at index %d of '%s'", s[i+1:i+3], utf8.RuneCountInString(s[:i+1]), s)
			}
			run = append(run, byte(high<<4|low))
		}
		i--
		writeJavaText(&out, run)
	}
	return out.String(), nil
}

func unhex(c byte) int {
	switch {
	case c >= '0' && c <= '9':
		return int(c - '0')
	case c >= 'a' && c <= 'f':
		return int(c-'a') + 10
	case c >= 'A' && c <= 'F':
		return int(c-'A') + 10
	}
	return -1
}

// writeJavaText writes b as text; each piece that is no UTF-8 becomes one U+FFFD, pieces cut as Java's decoder cuts them.
func writeJavaText(out *strings.Builder, b []byte) {
	for len(b) > 0 {
		r, n := utf8.DecodeRune(b)
		if r == utf8.RuneError && n <= 1 {
			n = replacedTogether(b)
		}
		out.WriteRune(r)
		b = b[n:]
	}
}

// replacedTogether is how many bytes at the beginning of b, which is no UTF-8 there, Java's decoder replaces by one U+FFFD.
func replacedTogether(b []byte) int {
	follows := func(i int) bool { return i < len(b) && b[i]&0xc0 == 0x80 }
	lead := b[0]
	switch {
	case lead >= 0xc2 && lead <= 0xdf: // one byte should follow
		return 1
	case lead >= 0xe0 && lead <= 0xef:
		switch {
		case len(b) > 1 && (!follows(1) || lead == 0xe0 && b[1] < 0xa0):
			return 1
		case len(b) > 2 && !follows(2):
			return 2
		}
		return min(len(b), 3) // cut short, or a surrogate
	case lead >= 0xf0 && lead <= 0xf4:
		switch {
		case len(b) > 1 && (!follows(1) || lead == 0xf0 && b[1] < 0x90 || lead == 0xf4 && b[1] > 0x8f):
			return 1
		case len(b) > 2 && !follows(2):
			return 2
		}
		return min(len(b), 3)
	}
	return 1
}
