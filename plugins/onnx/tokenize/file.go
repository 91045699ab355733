// Package tokenize turns texts into the numbers of their tokens, by the tokenizer.json that models of language come with: WordPiece (BERT and its family), byte-pair
// encoding (GPT-2, RoBERTa), SentencePiece's unigrams (T5, XLM-R, ALBERT), and whole words.
package tokenize

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"
)

// part is one of the file's steps; which members count depends on the type.
type part struct {
	Type string `json:"type"`

	// Of sequences of steps.
	Normalizers   []part `json:"normalizers"`
	PreTokenizers []part `json:"pretokenizers"`
	Processors    []part `json:"processors"`

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

	// Split (with Pattern), Punctuation and Digits.
	Behavior   string `json:"behavior"`
	Invert     bool   `json:"invert"`
	Individual bool   `json:"individual_digits"`

	// TemplateProcessing, BertProcessing and RobertaProcessing.
	Single        []map[string]templateMember `json:"single"`
	SpecialTokens map[string]struct {
		IDs []int64 `json:"ids"`
	} `json:"special_tokens"`
	Sep pair `json:"sep"`
	Cls pair `json:"cls"`
}

// pattern is what Replace and Split look for.
type pattern struct {
	String *string `json:"String"`
	Regex  *string `json:"Regex"`
}

type templateMember struct {
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
func (p *scored) UnmarshalJSON(text []byte) error { return both(text, &p.token, &p.score) }

func both(text []byte, first, second any) error {
	var members []json.RawMessage
	if err := json.Unmarshal(text, &members); err != nil || len(members) != 2 {
		return errors.Join(errors.New("a token and its number are an array of two"), err)
	}
	return errors.Join(json.Unmarshal(members[0], first), json.Unmarshal(members[1], second))
}

// merge is "a b" or ["a", "b"].
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
	a, b, ok := strings.Cut(joined, " ")
	if !ok {
		return fmt.Errorf("the merge %q is not two tokens", joined)
	}
	m[0], m[1] = a, b
	return nil
}

type file struct {
	Truncation *struct {
		MaxLength int `json:"max_length"`
	} `json:"truncation"`
	Padding *struct {
		ID int64 `json:"pad_id"`
	} `json:"padding"`
	AddedTokens   []added `json:"added_tokens"`
	Normalizer    *part   `json:"normalizer"`
	PreTokenizer  *part   `json:"pre_tokenizer"`
	PostProcessor *part   `json:"post_processor"`
	Model         model   `json:"model"`
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
}

// Parse reads a tokenizer.json. Steps that are not known are an error: their tokens would be wrong.
func Parse(text []byte) (*Tokenizer, error) {
	var f file
	if err := json.Unmarshal(text, &f); err != nil {
		return nil, fmt.Errorf("tokenizer.json: %w", err)
	}
	t, err := build(&f)
	if err != nil {
		return nil, fmt.Errorf("tokenizer.json: %w", err)
	}
	return t, nil
}

func build(f *file) (*Tokenizer, error) {
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
	for _, a := range f.AddedTokens {
		if a.Normalized {
			a.Content, _ = t.normalized(a.Content, false)
			t.later.add(a)
		} else {
			t.raw.add(a)
		}
	}
	if f.Truncation != nil {
		t.MaxLength = f.Truncation.MaxLength
	}
	for _, name := range []string{"<pad>", "[PAD]"} {
		if id, ok := vocab.ids[name]; ok {
			t.Pad = id
		}
	}
	if f.Padding != nil {
		t.Pad = f.Padding.ID
	}
	return t, nil
}

// vocabulary has the numbers of tokens, and for Unigram how likely each is.
type vocabulary struct {
	ids    map[string]int64
	scores []float64
}

func (m *model) vocabulary() (vocabulary, error) {
	var v vocabulary
	if m.Type == "Unigram" {
		var all []scored
		if err := json.Unmarshal(m.Vocab, &all); err != nil {
			return v, fmt.Errorf("the vocabulary: %w", err)
		}
		v.ids, v.scores = make(map[string]int64, len(all)), make([]float64, len(all))
		for i := range all {
			v.ids[all[i].token], v.scores[i] = int64(i), all[i].score
		}
	} else if len(m.Vocab) > 0 {
		if err := json.Unmarshal(m.Vocab, &v.ids); err != nil {
			return v, fmt.Errorf("the vocabulary: %w", err)
		}
	}
	if len(v.ids) == 0 {
		return v, errors.New("it has no vocabulary")
	}
	return v, nil
}

// unknown gives the number of the token for what is not in the vocabulary, -1 for none.
func (m *model) unknown(v *vocabulary) (int64, error) {
	if m.Unknown == nil {
		return -1, nil
	}
	id, ok := v.ids[*m.Unknown]
	if !ok {
		return -1, fmt.Errorf("the token %q for what is unknown is not in the vocabulary", *m.Unknown)
	}
	return id, nil
}

// words makes what finds the tokens of a word.
func (m *model) words(v vocabulary) (words, error) {
	unknown, err := m.unknown(&v)
	if err != nil {
		return nil, err
	}
	switch m.Type {
	case "WordPiece":
		return newWordPiece(m, v.ids, unknown)
	case "WordLevel":
		if unknown < 0 {
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

func (t *Tokenizer) postProcessor(p *part) error {
	if p == nil {
		return nil
	}
	switch p.Type {
	case "Sequence":
		for i := range p.Processors {
			if err := t.postProcessor(&p.Processors[i]); err != nil {
				return err
			}
		}
	case "ByteLevel": // it moves offsets, which nobody asks for
	case "BertProcessing", "RobertaProcessing":
		t.before, t.after = []int64{p.Cls.id}, []int64{p.Sep.id}
	case "TemplateProcessing":
		return t.template(p)
	default:
		return fmt.Errorf("its post-processor %q is not known here", p.Type)
	}
	return nil
}

// template reads what comes before and after a text.
func (t *Tokenizer) template(p *part) error {
	seen := false
	for _, member := range p.Single {
		if _, ok := member["Sequence"]; ok {
			seen = true
			continue
		}
		special, ok := p.SpecialTokens[member["SpecialToken"].ID]
		if !ok {
			return fmt.Errorf("the token %q of its template is not among its special tokens", member["SpecialToken"].ID)
		}
		if seen {
			t.after = append(t.after, special.IDs...)
		} else {
			t.before = append(t.before, special.IDs...)
		}
	}
	return nil
}
