package tokenize

import (
	"iter"
	"strings"
	"unicode"
	"unicode/utf8"
)

// added is a token that is found in the text as it is.
type added struct {
	ID         int64  `json:"id"`
	Content    string `json:"content"`
	SingleWord bool   `json:"single_word"` // not within a word
	LeftStrip  bool   `json:"lstrip"`      // the blanks before it are its own
	RightStrip bool   `json:"rstrip"`      // the blanks behind it are
	Normalized bool   `json:"normalized"`  // it is looked for in the normalized text
	Special    bool   `json:"special"`
}

// addedTokens are tokens by their first bytes, the longest first.
type addedTokens struct{ byFirst map[byte][]added }

func (a *addedTokens) add(token added) {
	if token.Content == "" {
		return
	}
	if a.byFirst == nil {
		a.byFirst = map[byte][]added{}
	}
	first := token.Content[0]
	all := a.byFirst[first]
	at := 0
	for at < len(all) && len(all[at].Content) >= len(token.Content) {
		if all[at].Content == token.Content {
			return
		}
		at++
	}
	all = append(all, added{})
	copy(all[at+1:], all[at:])
	all[at] = token
	a.byFirst[first] = all
}

// span is an added token, or what lies between two of them.
type span struct {
	begin, end int
	token      *added // nil between tokens
}

// spans gives the tokens in a text and what lies between them, in order; nothing of it is empty.
func (a *addedTokens) spans(text string) iter.Seq[span] {
	return func(yield func(span) bool) {
		done := 0
		for at := 0; at < len(text); {
			token := a.at(text[at:])
			if token == nil {
				at++
				continue
			}
			begin, end, ok := token.extent(text, at, done)
			at = max(at+len(token.Content), end)
			if !ok {
				continue
			}
			if done < begin && !yield(span{begin: done, end: begin}) {
				return
			}
			if !yield(span{begin, end, token}) {
				return
			}
			done = end
		}
		if done < len(text) {
			yield(span{begin: done, end: len(text)})
		}
	}
}

// extent gives where a token that was found at a place begins and ends, with the blanks that are its own and not of the one that ended at done. It is none when it had to
// be a word and is a part of one.
func (token *added) extent(text string, at, done int) (begin, end int, ok bool) {
	begin, end = at, at+len(token.Content)
	if token.SingleWord && (endsWithWord(text[:begin]) || beginsWithWord(text[end:])) {
		return 0, 0, false
	}
	if token.LeftStrip {
		begin = len(strings.TrimRightFunc(text[:begin], unicode.IsSpace))
	}
	if token.RightStrip {
		end = len(text) - len(strings.TrimLeftFunc(text[end:], unicode.IsSpace))
	}
	return max(begin, done), end, true
}

// at gives the longest token that a text begins with.
func (a *addedTokens) at(text string) *added {
	all := a.byFirst[text[0]]
	for i := range all {
		if strings.HasPrefix(text, all[i].Content) {
			return &all[i]
		}
	}
	return nil
}

func endsWithWord(text string) bool {
	r, size := utf8.DecodeLastRuneInString(text)
	return size > 0 && isWord(r)
}

func beginsWithWord(text string) bool {
	r, size := utf8.DecodeRuneInString(text)
	return size > 0 && isWord(r)
}
