package tokenize

import (
	"fmt"
	"strings"
	"unicode"
	"unicode/utf8"

	"golang.org/x/text/unicode/norm"
)

func (t *Tokenizer) normalizer(p *stage) error {
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
func (p *stage) inferredNormalizer() string {
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

func normalizerSteps(p *stage) ([]step, error) {
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

func bertNormalizer(p *stage) (steps []step) {
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
	return func(p piece, _ bounds) (piece, error) { return piece{do(p.text), len(do(p.text[:p.first]))}, nil }
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
	return func(p piece, _ bounds) (piece, error) {
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
	return func(p piece, _ bounds) (piece, error) { return p.behind(lead), nil }
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
func replace(p *stage) (step, error) {
	find, err := finderOf(&p.Pattern)
	if err != nil {
		return nil, fmt.Errorf("its normalizer Replace: %w", err)
	}
	return func(from piece, b bounds) (piece, error) {
		if from.text == "" { // nothing is found there, not even nothing
			return from, nil
		}
		return from.replaced(find, p.Content, b)
	}, nil
}

// replaced writes something else for what is found. It belongs to the last character that it stands for.
func (p piece) replaced(find finder, content string, b bounds) (piece, error) {
	var made strings.Builder
	first := 0
	err := find(p.text, b.until, func(s section) error {
		if s.found {
			made.WriteString(content)
		} else {
			made.WriteString(p.text[s.begin:s.end])
		}
		switch {
		case p.first == 0: // what is found before all of a later part is not at the beginning of the text
		case s.end <= p.first:
			first = made.Len()
		case !s.found && s.begin < p.first:
			first = made.Len() - (s.end - p.first)
		}
		return b.check(made.Len())
	})
	return piece{made.String(), first}, err
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
