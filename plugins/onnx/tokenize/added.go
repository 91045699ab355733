package tokenize

import (
	"fmt"
	"iter"
	"maps"
	"slices"
	"strings"
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
		p, err := t.normalized(piece{text: content}, boundsOf(content))
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

// addedTokens finds tokens. Some files add thousands that all begin with <, so they are found by their lengths, which are few.
type addedTokens struct {
	byContent map[string]*added
	lengths   [256][]int // in bytes, of the tokens that begin with a byte; the longest first
}

// add adds a token, unless there is one with the same content.
func (a *addedTokens) add(token added) {
	if a.byContent == nil {
		a.byContent = map[string]*added{}
	}
	if _, ok := a.byContent[token.Content]; ok {
		return
	}
	a.byContent[token.Content] = &token
	lengths := &a.lengths[token.Content[0]]
	at, ok := slices.BinarySearchFunc(*lengths, len(token.Content), func(have, wanted int) int { return wanted - have })
	if !ok {
		*lengths = slices.Insert(*lengths, at, len(token.Content))
	}
}

// span is an added token, or what lies between two of them.
type span struct {
	begin, end int
	token      *added // nil between tokens
}

// spans gives the tokens in a text and what lies between them, in order; nothing of it is empty.
func (a *addedTokens) spans(text string) iter.Seq[span] {
	return func(yield func(span) bool) {
		done, blanks := 0, 0
		for at := 0; at < len(text); {
			token := a.at(text[at:])
			if token == nil {
				_, size := utf8.DecodeRuneInString(text[at:])
				at += size
				continue
			}
			begin, end, ok := token.extent(text, at, done, &blanks)
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
// be a word and is a part of one. What is before blanks has been seen to be blank, from the end of a token found earlier on: so nobody looks at the same blanks again and again.
func (token *added) extent(text string, at, done int, blanks *int) (begin, end int, ok bool) {
	begin, end = at, at+len(token.Content)
	if token.SingleWord && (endsWithWord(text[:begin]) || beginsWithWord(text[end:])) {
		return 0, 0, false
	}
	if token.LeftStrip {
		from := min(done, begin)
		begin = max(done, from+len(strings.TrimRightFunc(text[from:begin], unicode.IsSpace)))
	}
	if token.RightStrip {
		seen := max(end, *blanks)
		end = len(text) - len(strings.TrimLeftFunc(text[seen:], unicode.IsSpace))
		*blanks = end
	}
	return begin, end, true
}

// at gives the longest token that a text begins with.
func (a *addedTokens) at(text string) *added {
	for _, length := range a.lengths[text[0]] {
		if length > len(text) {
			continue
		}
		if token, ok := a.byContent[text[:length]]; ok {
			return token
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
