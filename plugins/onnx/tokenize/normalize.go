package tokenize

import (
	"errors"
	"fmt"
	"regexp"
	"strings"
	"unicode"
	"unicode/utf8"

	"golang.org/x/text/unicode/norm"
)

func (t *Tokenizer) normalizer(p *part) error {
	if p == nil {
		return nil
	}
	if p.Type == "Sequence" {
		for i := range p.Normalizers {
			if err := t.normalizer(&p.Normalizers[i]); err != nil {
				return err
			}
		}
		return nil
	}
	steps, err := normalizerSteps(p)
	for _, do := range steps {
		t.normalize = append(t.normalize, step{do, p.Type == typePrecompiled})
	}
	return err
}

const typePrecompiled = "Precompiled"

func normalizerSteps(p *part) ([]func(string) string, error) {
	var step func(string) string
	var err error
	switch p.Type {
	case "BertNormalizer":
		return bertNormalizer(p), nil
	case "Strip":
		step = strip(flag(p.StripLeft, true), flag(p.StripRight, true))
	case "Prepend":
		step = func(s string) string {
			if s == "" {
				return s
			}
			return p.Prepend + s
		}
	case "Replace":
		step, err = replace(p)
	case typePrecompiled:
		step, err = precompiled(p.CharsMap)
	default:
		var ok bool
		if step, ok = normalizers[p.Type]; !ok {
			return nil, fmt.Errorf("its normalizer %q is not known here", p.Type)
		}
	}
	return []func(string) string{step}, err
}

func bertNormalizer(p *part) (steps []func(string) string) {
	lower := flag(p.Lowercase, true)
	if flag(p.CleanText, true) {
		steps = append(steps, cleanText)
	}
	if flag(p.Chinese, true) {
		steps = append(steps, spaceChinese)
	}
	if flag(p.StripAccents, lower) {
		steps = append(steps, form(norm.NFD), without(unicode.Mn))
	}
	if lower {
		steps = append(steps, lowercase)
	}
	return steps
}

var normalizers = map[string]func(string) string{ //nolint:gochecknoglobals // a table, never changed
	"Lowercase": lowercase, "NFC": form(norm.NFC), "NFD": form(norm.NFD), "NFKC": form(norm.NFKC), "NFKD": form(norm.NFKD), "StripAccents": without(unicode.M), "Nmt": nmt,
}

// joiner is what the forms put between more than thirty marks, so that nobody has to keep more of them in mind. Others do not.
const joiner = "\u034f"

func form(f norm.Form) func(string) string {
	return func(s string) string {
		made := f.String(s)
		if !strings.Contains(s, joiner) {
			made = strings.ReplaceAll(made, joiner, "")
		}
		return made
	}
}

// lowercase writes each letter small, by itself: no letter depends on where it is. The dotted İ alone becomes two characters.
func lowercase(s string) string {
	return strings.ToLower(strings.ReplaceAll(s, "\u0130", "i\u0307"))
}

// without drops characters.
func without(table *unicode.RangeTable) func(string) string {
	return func(s string) string {
		return strings.Map(func(r rune) rune {
			if unicode.Is(table, r) {
				return -1
			}
			return r
		}, s)
	}
}

func strip(left, right bool) func(string) string {
	return func(s string) string {
		if left {
			s = strings.TrimLeftFunc(s, unicode.IsSpace)
		}
		if right {
			s = strings.TrimRightFunc(s, unicode.IsSpace)
		}
		return s
	}
}

// replace reads a text to be replaced, or a regular expression that means the same here as there: classes of characters with a backslash do not.
func replace(p *part) (func(string) string, error) {
	switch {
	case p.Pattern.String != nil && *p.Pattern.String != "":
		return func(s string) string { return strings.ReplaceAll(s, *p.Pattern.String, p.Content) }, nil
	case p.Pattern.Regex == nil:
		return nil, errors.New("its normalizer Replace has no pattern")
	}
	text := *p.Pattern.Regex
	re, err := regexp.Compile(text)
	if err != nil || letterEscape.MatchString(text) || strings.Contains(text, "(?") || strings.Contains(text, "[:") || re.MatchString("") {
		return nil, errors.Join(fmt.Errorf("the regular expression %q of its normalizer Replace cannot be used here", text), err)
	}
	return func(s string) string { return re.ReplaceAllLiteralString(s, p.Content) }, nil
}

var letterEscape = regexp.MustCompile(`\\[0-9A-Za-z]`)

func cleanText(s string) string {
	return strings.Map(func(r rune) rune {
		switch {
		case r == '\t' || r == '\n' || r == '\r':
			return ' '
		case r == 0 || r == utf8.RuneError || unicode.In(r, unicode.Cc, unicode.Cf, unicode.Co, unicode.Cs):
			return -1
		case unicode.IsSpace(r):
			return ' '
		}
		return r
	}, s)
}

// nmt drops control characters and makes blanks of what looks like one.
func nmt(s string) string {
	return strings.Map(func(r rune) rune {
		switch {
		case r == '\t' || r == '\n' || r == '\f' || r == '\r' || r == 0x1680 || r >= 0x200b && r <= 0x200f || r == 0x2028 || r == 0x2029 || r == 0x2581 || r == 0xfeff ||
			r == utf8.RuneError:
			return ' '
		case r >= 0x01 && r <= 0x1f || r == 0x7f || r == 0x8f || r == 0x9f:
			return -1
		}
		return r
	}, s)
}

// spaceChinese puts blanks around each Chinese character.
func spaceChinese(s string) string {
	var b strings.Builder
	for _, r := range s {
		if isChinese(r) {
			b.WriteString(" " + string(r) + " ")
		} else {
			b.WriteRune(r)
		}
	}
	return b.String()
}

func isChinese(r rune) bool {
	return r >= 0x4e00 && r <= 0x9fff || r >= 0x3400 && r <= 0x4dbf || r >= 0x20000 && r <= 0x2a6df || r >= 0x2a700 && r <= 0x2b73f || r >= 0x2b740 && r <= 0x2b81f ||
		r >= 0x2b820 && r <= 0x2ceaf || r >= 0xf900 && r <= 0xfaff || r >= 0x2f800 && r <= 0x2fa1f
}
