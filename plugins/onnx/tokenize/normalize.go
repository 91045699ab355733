package tokenize

import (
	"fmt"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"golang.org/x/text/unicode/norm"
)

func (t *Tokenizer) normalizer(p *part) error {
	if p == nil {
		return nil
	}
	if p.Type == "" {
		p.Type = p.inferredNormalizer()
	}
	if p.Type == typeSequence {
		for i := range p.Normalizers {
			if err := t.normalizer(&p.Normalizers[i]); err != nil {
				return err
			}
		}
		return nil
	}
	steps, err := normalizerSteps(p)
	if err != nil {
		return err
	}
	t.normalize = append(t.normalize, steps...)
	return nil
}

// inferredNormalizer finds the type of a normalizer by its members: files of early versions do not name it.
func (p *part) inferredNormalizer() string {
	switch {
	case p.CleanText != nil:
		return typeBERT
	case p.StripLeft != nil:
		return "Strip"
	case p.Normalizers != nil:
		return typeSequence
	}
	return ""
}

const typeBERT = "BertNormalizer"

func normalizerSteps(p *part) ([]step, error) {
	switch p.Type {
	case typeBERT, "Bert":
		return bertNormalizer(p), nil
	case "Strip":
		return []step{strip(flag(p.StripLeft, true), flag(p.StripRight, true))}, nil
	case "Prepend":
		return []step{prepend(p.Prepend)}, nil
	case "Replace":
		do, err := replace(p)
		return []step{do}, err
	case "Precompiled":
		do, err := precompiled(p.CharsMap)
		return []step{do}, err
	}
	do, ok := normalizers[p.Type]
	if !ok {
		return nil, fmt.Errorf("its normalizer %q is not known here", p.Type)
	}
	return []step{do}, nil
}

func bertNormalizer(p *part) (steps []step) {
	lower := flag(p.Lowercase, true)
	if flag(p.CleanText, true) {
		steps = append(steps, each(cleanText))
	}
	if flag(p.Chinese, true) {
		steps = append(steps, each(spaceChinese))
	}
	if flag(p.StripAccents, lower) {
		steps = append(steps, form(norm.NFD), each(without(accents)))
	}
	if lower {
		steps = append(steps, each(lowercase))
	}
	return steps
}

var normalizers = map[string]step{ //nolint:gochecknoglobals // a table, never changed
	"Lowercase": each(lowercase), "NFC": form(norm.NFC), "NFD": form(norm.NFD), "NFKC": form(norm.NFKC), "NFKD": form(norm.NFKD),
	"StripAccents": each(without(marks)), "Nmt": each(nmt), "ByteLevel": each(bytesAsLetters),
}

// each makes a step of a function that makes something of each character by itself.
func each(do func(string) string) step {
	return func(p piece, _ time.Time) (piece, error) { return piece{do(p.text), len(do(p.text[:p.first]))}, nil }
}

// joiner is what the forms put between more than thirty marks, so that nobody has to keep more of them in mind. Others do not.
const joiner = "\u034f"

func form(f norm.Form) step {
	do := func(s string) string {
		made := f.String(s)
		if !strings.Contains(s, joiner) {
			made = strings.ReplaceAll(made, joiner, "")
		}
		return made
	}
	return func(p piece, _ time.Time) (piece, error) {
		made := piece{text: formed(p.text, do)}
		if p.first > 0 {
			made.first = lead(made.text, formed(p.text[:p.first], do))
		}
		return made, nil
	}
}

// formed brings what lies between the characters that are apart into a form.
func formed(s string, do func(string) string) string {
	next := func(s string) int {
		return strings.IndexFunc(s, func(r rune) bool { return r >= firstApart && unicode.Is(apart(), r) })
	}
	at := next(s)
	if at < 0 {
		return do(s)
	}
	var b strings.Builder
	for ; at >= 0; at = next(s) {
		_, size := utf8.DecodeRuneInString(s[at:])
		b.WriteString(do(s[:at]) + s[at:at+size])
		s = s[at+size:]
	}
	b.WriteString(do(s))
	return b.String()
}

// firstApart spares most texts the search.
const firstApart = 0x7fd

// lead gives how long the beginning of a text is that stands for what is begin by itself: begin, unless its end was joined with what follows to another character.
func lead(text, begin string) int {
	n := 0
	for n < len(begin) {
		_, size := utf8.DecodeRuneInString(begin[n:])
		if !strings.HasPrefix(text[n:], begin[n:n+size]) {
			_, size = utf8.DecodeRuneInString(text[n:])
			return n + size
		}
		n += size
	}
	return n
}

// lowercase writes each letter small, by itself: no letter depends on where it is. The dotted İ alone becomes two characters.
func lowercase(s string) string {
	return strings.ToLower(strings.ReplaceAll(s, "\u0130", "i\u0307"))
}

// without drops characters.
func without(table func() *unicode.RangeTable) func(string) string {
	return func(s string) string {
		return strings.Map(func(r rune) rune {
			if unicode.Is(table(), r) {
				return -1
			}
			return r
		}, s)
	}
}

func strip(left, right bool) step {
	return func(p piece, _ time.Time) (piece, error) {
		begin, end := 0, len(p.text)
		if left {
			begin = end - len(strings.TrimLeftFunc(p.text, unicode.IsSpace))
		}
		if right {
			end = begin + len(strings.TrimRightFunc(p.text[begin:], unicode.IsSpace))
		}
		return p.part(begin, end), nil
	}
}

// prepend puts something before a text, unless that is empty. It belongs to the character behind it.
func prepend(lead string) step {
	return func(p piece, _ time.Time) (piece, error) { return p.behind(lead), nil }
}

func (p piece) behind(lead string) piece {
	if p.text == "" {
		return p
	}
	if p.first > 0 {
		p.first += len(lead)
	}
	p.text = lead + p.text
	return p
}

// replace reads what is looked for: a text, or a regular expression.
func replace(p *part) (step, error) {
	find, err := finderOf(&p.Pattern)
	if err != nil {
		return nil, fmt.Errorf("its normalizer Replace: %w", err)
	}
	return func(from piece, until time.Time) (piece, error) {
		sections, err := find(from.text, until)
		if err != nil {
			return from, err
		}
		return from.replaced(sections, p.Content), nil
	}, nil
}

// replaced writes something else for the sections that were found. It belongs to the last character that it stands for.
func (p piece) replaced(sections []section, content string) piece {
	var b strings.Builder
	first := 0
	for _, s := range sections {
		part := p.text[s.begin:s.end]
		if s.found {
			part = content
		}
		b.WriteString(part)
		switch {
		case s.end <= p.first:
			first = b.Len()
		case !s.found && s.begin < p.first:
			first = b.Len() - (s.end - p.first)
		}
	}
	return piece{b.String(), first}
}

// bytesAsLetters writes each byte as a letter that can be seen, as GPT-2's vocabulary has it.
func bytesAsLetters(s string) string {
	var b strings.Builder
	b.Grow(2 * len(s))
	for i := range len(s) {
		b.WriteRune(letters[s[i]])
	}
	return b.String()
}

func cleanText(s string) string {
	return strings.Map(func(r rune) rune {
		switch {
		case unicode.Is(noText(), r):
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

// isChinese says what Hugging Face's library takes for Chinese: from 0x2b820 to 0x2b91f nothing is.
func isChinese(r rune) bool {
	return r >= 0x4e00 && r <= 0x9fff || r >= 0x3400 && r <= 0x4dbf || r >= 0x20000 && r <= 0x2a6df || r >= 0x2a700 && r <= 0x2b73f || r >= 0x2b740 && r <= 0x2b81f ||
		r >= 0x2b920 && r <= 0x2ceaf || r >= 0xf900 && r <= 0xfaff || r >= 0x2f800 && r <= 0x2fa1f
}
