package tokenize

import (
	"fmt"
	"iter"
	"maps"
	"slices"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"
)

// added is a token that is found in the text as it is.
type added struct {
	ID         int64  `json:"-"` // the file's number is not what counts: see addTokens
	Content    string `json:"content"`
	SingleWord bool   `json:"single_word"` // not within a word
	LeftStrip  bool   `json:"lstrip"`      // the blanks before it are its own
	RightStrip bool   `json:"rstrip"`      // the blanks behind it are
	Normalized bool   `json:"normalized"`  // it is looked for in the normalized text
}

// addTokens takes the file's added tokens. A token that is in the vocabulary has the number that it has there; others are numbered from the vocabulary's size on, in their
// order, whatever the file says: so does Hugging Face's library. Of tokens with the same content the last one counts. It gives the numbers by contents.
func (t *Tokenizer) addTokens(list []added, v *vocabulary) (map[string]int64, error) {
	next := int64(v.size)
	ids := map[string]int64{}
	tokens := map[int64]added{}
	for _, token := range list {
		if token.Content == "" {
			continue
		}
		id, ok := ids[token.Content]
		if !ok {
			id, ok = v.ids[token.Content]
		}
		if !ok {
			id = next
			next++
		}
		token.ID = id
		ids[token.Content], tokens[id] = id, token
	}
	for _, id := range slices.Sorted(maps.Keys(tokens)) {
		token := tokens[id]
		if !token.Normalized {
			t.raw.add(token)
			continue
		}
		content := token.Content
		p, err := t.normalized(piece{text: content}, time.Now().Add(textLimit))
		if err != nil {
			return nil, fmt.Errorf("its added token %q: %w", content, err)
		}
		if p.text == "" { // found everywhere, it keeps that library busy until the memory is full
			return nil, fmt.Errorf("the normalizer leaves nothing of its added token %q: say normalized: false", content)
		}
		token.Content = p.text
		t.later.add(token)
	}
	return ids, nil
}

// addedTokens are tokens by their first bytes, the longest first.
type addedTokens struct{ byFirst map[byte][]added }

func (a *addedTokens) add(token added) {
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
	a.byFirst[first] = slices.Insert(all, at, token)
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
				_, size := utf8.DecodeRuneInString(text[at:])
				at += size
				continue
			}
			begin, end, ok := token.extent(text, at, done)
			at += len(token.Content) // a token may be found again in the blanks that another one took behind it
			if !ok {
				continue
			}
			if done < begin && !yield(span{begin: done, end: begin}) {
				return
			}
			if begin < end && !yield(span{begin, end, token}) { // else others have taken all of it as their blanks
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
		begin = max(done, len(strings.TrimRightFunc(text[:begin], unicode.IsSpace)))
	}
	if token.RightStrip {
		end = len(text) - len(strings.TrimLeftFunc(text[end:], unicode.IsSpace))
	}
	return begin, end, true
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
