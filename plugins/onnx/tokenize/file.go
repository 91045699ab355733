// Package tokenize turns texts into the numbers of their tokens, by the tokenizer.json that models of language come with: WordPiece (BERT and its family), byte-pair
// encoding (GPT-2, RoBERTa), SentencePiece's unigrams (T5, XLM-R, ALBERT), and whole words.
package tokenize

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/flambeau-serve/flambeau/internal/malformed"
)

// stage is one of the file's steps; which members count depends on the type.
type stage struct {
	Type string `json:"type"`

	// Of sequences of steps.
	Normalizers   []stage `json:"normalizers"`
	PreTokenizers []stage `json:"pretokenizers"`
	Processors    []stage `json:"processors"`

	// BertNormalizer.
	CleanText    *bool `json:"clean_text"`
	Chinese      *bool `json:"handle_chinese_chars"`
	StripAccents *bool `json:"strip_accents"`
	Lowercase    *bool `json:"lowercase"`

	// Strip, Replace, Prepend and Precompiled.
	StripLeft  *bool   `json:"strip_left"`
	StripRight *bool   `json:"strip_right"`
	Pattern    pattern `json:"pattern"`
	Content    string  `json:"content"`
	Prepend    string  `json:"prepend"`
	CharsMap   []byte  `json:"precompiled_charsmap"`

	// ByteLevel and Metaspace.
	PrefixSpace *bool  `json:"add_prefix_space"`
	UseRegex    *bool  `json:"use_regex"`
	Replacement string `json:"replacement"`
	Scheme      string `json:"prepend_scheme"`
	Split       *bool  `json:"split"`

	// Split (with Pattern), Punctuation, Digits, CharDelimiterSplit and FixedLength.
	Behavior   string `json:"behavior"`
	Invert     bool   `json:"invert"`
	Individual bool   `json:"individual_digits"`
	Delimiter  string `json:"delimiter"`
	Length     *int   `json:"length"`

	// TemplateProcessing, BertProcessing and RobertaProcessing.
	Single        []templateMember `json:"single"`
	Pair          []templateMember `json:"pair"`
	SpecialTokens map[string]struct {
		IDs []int64 `json:"ids"`
	} `json:"special_tokens"`
	Sep pair `json:"sep"`
	Cls pair `json:"cls"`
}

const typeSequence = "Sequence"

// pattern is what Replace and Split look for.
type pattern struct {
	String *string `json:"String"`
	Regex  *string `json:"Regex"`
}

// templateMember is a token of a template, or one of the texts.
type templateMember struct {
	SpecialToken *named `json:"SpecialToken"`
	Sequence     *named `json:"Sequence"`
}

type named struct {
	ID   string `json:"id"`
	Type int64  `json:"type_id"`
}

// pair is [token, number].
type pair struct {
	token string
	id    int64
}

// UnmarshalJSON reads an array of the two.
func (p *pair) UnmarshalJSON(text []byte) error { return both(text, &p.token, &p.id) }

// scored is [token, logarithm of its probability].
type scored struct {
	token string
	score float64
}

// UnmarshalJSON reads an array of the two.
func (p *scored) UnmarshalJSON(text []byte) error {
	var number json.Number
	if err := both(text, &p.token, &number); err != nil {
		return err
	}
	var err error
	p.score, err = score(number.String())
	return err
}

// score reads a number as Hugging Face's library does: digits as a whole number, which is then divided by a power of ten. The last bit can be another one than that of the
// nearest number, and which of two ways to the tokens of a text is the likelier can depend on it.
func score(number string) (float64, error) {
	mantissa, exponent, _ := strings.Cut(strings.ToLower(number), "e")
	digits, negative := strings.CutPrefix(mantissa, "-")
	whole, power := significand(digits)
	if exponent != "" {
		more, _ := strconv.Atoi(exponent) // what no int has is far beyond all numbers as well
		power += max(min(more, math.MaxInt32), math.MinInt32)
	}
	value := float64(whole)
	for ; power < -maxPower && value != 0; power += maxPower {
		value /= powerOfTen(maxPower)
	}
	if power < 0 {
		value /= powerOfTen(-power)
	} else if value != 0 {
		value *= powerOfTen(power)
	}
	if number == "" || math.IsInf(value, 0) {
		return 0, fmt.Errorf("the score %q is not a number that 64 bits have", number)
	}
	if negative {
		value = -value
	}
	return value, nil
}

// significand reads as many digits as 64 bits have, and gives the power of ten that they are to be multiplied with.
func significand(digits string) (whole uint64, power int) {
	fraction, full := false, false
	for _, c := range digits {
		if c == '.' {
			fraction = true
			continue
		}
		digit := uint64(c - '0')
		full = full || whole > (math.MaxUint64-digit)/10
		switch {
		case !full:
			whole = whole*10 + digit
			if fraction {
				power--
			}
		case !fraction:
			power++
		}
	}
	return whole, power
}

// maxPower is the largest power of ten that 64 bits have.
const maxPower = 308

func powerOfTen(power int) float64 {
	value, _ := strconv.ParseFloat("1e"+strconv.Itoa(power), 64) // infinite beyond maxPower
	return value
}

func both(text []byte, first, second any) error {
	var members []json.RawMessage
	if err := json.Unmarshal(text, &members); err != nil || len(members) != 2 {
		return errors.Join(errors.New("a token and its number are an array of two"), err)
	}
	return errors.Join(json.Unmarshal(members[0], first), json.Unmarshal(members[1], second))
}

// merge is "a b" or ["a", "b"]. The first line of merges.txt, #version, which some files have among them, is an empty one.
type merge [2]string

// UnmarshalJSON reads either form.
func (m *merge) UnmarshalJSON(text []byte) error {
	var both []string
	if json.Unmarshal(text, &both) == nil && len(both) == 2 {
		copy(m[:], both)
		return nil
	}
	var joined string
	if err := json.Unmarshal(text, &joined); err != nil {
		return err
	}
	if strings.HasPrefix(joined, "#version") {
		return nil
	}
	a, b, ok := strings.Cut(joined, " ")
	if !ok || strings.Contains(b, " ") {
		return fmt.Errorf("the merge %q is not two tokens", joined)
	}
	m[0], m[1] = a, b
	return nil
}

type file struct {
	Version    *string `json:"version"`
	Truncation *struct {
		MaxLength int    `json:"max_length"`
		Direction string `json:"direction"`
	} `json:"truncation"`
	Padding       *padding `json:"padding"`
	AddedTokens   []added  `json:"added_tokens"`
	Normalizer    *stage   `json:"normalizer"`
	PreTokenizer  *stage   `json:"pre_tokenizer"`
	PostProcessor *stage   `json:"post_processor"`
	Model         model    `json:"model"`
}

type padding struct {
	Strategy  fixedLength `json:"strategy"`
	Direction string      `json:"direction"`
	Multiple  *int        `json:"pad_to_multiple_of"`
	ID        int64       `json:"pad_id"`
	Type      int64       `json:"pad_type_id"`
}

// fixedLength is 0 for "BatchLongest", and n for {"Fixed": n}.
type fixedLength int

// UnmarshalJSON reads either form.
func (l *fixedLength) UnmarshalJSON(text []byte) error {
	var name string
	if json.Unmarshal(text, &name) == nil {
		if name != "" && name != "BatchLongest" {
			return fmt.Errorf("the strategy %q of its padding is not known here", name)
		}
		return nil
	}
	var fixed struct{ Fixed int }
	if err := json.Unmarshal(text, &fixed); err != nil {
		return err
	}
	*l = fixedLength(fixed.Fixed)
	return nil
}

// model is the file's model: which members count depends on the type.
type model struct {
	Type         string          `json:"type"`
	Vocab        json.RawMessage `json:"vocab"` // of Unigram an array of tokens and scores, else an object of numbers by tokens
	Unknown      *string         `json:"unk_token"`
	UnknownID    *int64          `json:"unk_id"`
	Prefix       *string         `json:"continuing_subword_prefix"`
	Suffix       *string         `json:"end_of_word_suffix"`
	MaxChars     *int            `json:"max_input_chars_per_word"`
	Merges       []merge         `json:"merges"`
	FuseUnknown  bool            `json:"fuse_unk"`
	ByteFallback bool            `json:"byte_fallback"`
	IgnoreMerges bool            `json:"ignore_merges"`
	Dropout      float64         `json:"dropout"` // what part of the merges is left out by chance; null: none
}

// Parse reads a tokenizer.json. Steps that are not known are an error: their tokens would be wrong.
func Parse(text []byte) (*Tokenizer, error) {
	if !utf8.Valid(text) {
		return nil, errors.New("tokenizer.json is not UTF-8")
	}
	var f file
	if err := json.Unmarshal(text, &f); err != nil {
		return nil, fmt.Errorf("tokenizer.json: %s", malformed.JSON(err))
	}
	t, err := build(&f)
	if err != nil {
		return nil, fmt.Errorf("tokenizer.json: %w", err)
	}
	return t, nil
}

func build(f *file) (*Tokenizer, error) {
	if f.Version != nil && *f.Version != "1.0" {
		return nil, fmt.Errorf("its version is %q, and 1.0 is known here", *f.Version)
	}
	t := &Tokenizer{}
	vocab, err := f.Model.vocabulary()
	if err != nil {
		return nil, err
	}
	if t.words, err = f.Model.words(vocab); err != nil {
		return nil, err
	}
	if err := errors.Join(t.normalizer(f.Normalizer), t.preTokenizer(f.PreTokenizer), t.postProcessor(f.PostProcessor)); err != nil {
		return nil, err
	}
	ids, err := t.addTokens(f.AddedTokens, &vocab)
	if err != nil {
		return nil, err
	}
	return t, t.lengths(f, vocab.ids, ids)
}

// lengths reads how texts are cut, and filled up.
func (t *Tokenizer) lengths(f *file, ids ...map[string]int64) error {
	if f.Truncation != nil {
		// Its strategy says which of two texts is cut, and here there is one only: it is cut. (For OnlySecond the library refuses one text that is too long; files have that
		// from whoever saved them after a training with pairs, and whoever loads them in Python sets it anew.)
		if t.MaxLength = f.Truncation.MaxLength; t.MaxLength < 0 {
			return fmt.Errorf("its truncation is to %d tokens", t.MaxLength)
		}
		var err error
		if t.cutLeft, err = isLeft(f.Truncation.Direction); err != nil {
			return fmt.Errorf("its truncation: %w", err)
		}
	}
	if p := f.Padding; p != nil {
		t.Padding = Padding{ID: p.ID, Type: p.Type, Fixed: int(p.Strategy)}
		if p.Multiple != nil {
			t.Padding.Multiple = *p.Multiple
		}
		var err error
		if t.Padding.Left, err = isLeft(p.Direction); err != nil {
			return fmt.Errorf("its padding: %w", err)
		}
		if t.Padding.Fixed > maxPadding || t.Padding.Multiple > maxPadding {
			return fmt.Errorf("its padding makes each text longer than %d tokens", maxPadding)
		}
		return nil
	}
	for _, name := range []string{"<pad>", "[PAD]"} {
		for _, all := range ids {
			if id, ok := all[name]; ok {
				t.Padding.ID = id
			}
		}
	}
	return nil
}

// maxPadding bounds what a file may fill each text up to.
const maxPadding = 1 << 20

func isLeft(direction string) (bool, error) {
	switch direction {
	case "", "Right":
		return false, nil
	case "Left":
		return true, nil
	}
	return false, fmt.Errorf("the direction %q is neither Left nor Right", direction)
}

// vocabulary has the numbers of tokens, and for Unigram how likely each is.
type vocabulary struct {
	ids    map[string]int64
	scores []float64
	size   int
}

func (m *model) vocabulary() (vocabulary, error) {
	var v vocabulary
	listed := bytes.HasPrefix(bytes.TrimSpace(m.Vocab), []byte("["))
	if m.Type == "" {
		m.Type = m.inferred(listed)
	}
	if m.Type == "Unigram" {
		var all []scored
		if err := json.Unmarshal(m.Vocab, &all); err != nil {
			return v, fmt.Errorf("the vocabulary: %s", malformed.JSON(err))
		}
		v.ids, v.scores = make(map[string]int64, len(all)), make([]float64, len(all))
		for i := range all {
			v.ids[all[i].token], v.scores[i] = int64(i), all[i].score
		}
		v.size = len(all)
	} else if len(m.Vocab) > 0 {
		if err := json.Unmarshal(m.Vocab, &v.ids); err != nil {
			return v, fmt.Errorf("the vocabulary: %s", malformed.JSON(err))
		}
		v.size = len(v.ids)
	}
	if len(v.ids) == 0 {
		return v, errors.New("it has no vocabulary")
	}
	for token, id := range v.ids {
		if id < 0 || id > math.MaxUint32 {
			return v, fmt.Errorf("the vocabulary: the number %d of the token %q is not from 0 to %d", id, token, uint32(math.MaxUint32))
		}
	}
	return v, nil
}

// inferred finds the type of a model by its members: files of early versions do not name it.
func (m *model) inferred(listed bool) string {
	switch {
	case listed:
		return "Unigram"
	case m.Merges != nil:
		return "BPE"
	case m.Prefix != nil && m.MaxChars != nil:
		return "WordPiece"
	}
	return "WordLevel"
}

// What unknown gives when there is no token.
const (
	noUnknown      = -1 // none is named
	missingUnknown = -2 // the one that is named is not in the vocabulary, which only matters once it is needed
)

// unknown gives the number of the token for what is not in the vocabulary.
func (m *model) unknown(v *vocabulary) int64 {
	if m.Unknown == nil {
		return noUnknown
	}
	id, ok := v.ids[*m.Unknown]
	if !ok {
		return missingUnknown
	}
	return id
}

// words makes what finds the tokens of a word.
func (m *model) words(v vocabulary) (words, error) {
	unknown := m.unknown(&v)
	switch m.Type {
	case "WordPiece":
		return newWordPiece(m, v.ids, unknown)
	case "WordLevel":
		if unknown == noUnknown {
			return nil, errors.New("WordLevel needs unk_token")
		}
		return wordLevel{v.ids, unknown}, nil
	case "BPE":
		return newBytePairs(m, v.ids, unknown)
	case "Unigram":
		return newUnigrams(m, v)
	}
	return nil, fmt.Errorf("its model %s is none of WordPiece, WordLevel, BPE, Unigram", m.Type)
}

func flag(b *bool, otherwise bool) bool {
	if b == nil {
		return otherwise
	}
	return *b
}
