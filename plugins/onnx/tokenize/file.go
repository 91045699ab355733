// Package tokenize turns texts into the numbers of their tokens, by the tokenizer.json that models of language come with: WordPiece (BERT and its family) and
// byte-pair encoding (GPT-2, RoBERTa).
package tokenize

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
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

	// ByteLevel.
	PrefixSpace bool  `json:"add_prefix_space"`
	UseRegex    *bool `json:"use_regex"`

	// TemplateProcessing, BertProcessing and RobertaProcessing.
	Single        []map[string]templateMember `json:"single"`
	SpecialTokens map[string]struct {
		IDs []int64 `json:"ids"`
	} `json:"special_tokens"`
	Sep pair `json:"sep"`
	Cls pair `json:"cls"`
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
func (p *pair) UnmarshalJSON(text []byte) error {
	var members []json.RawMessage
	if err := json.Unmarshal(text, &members); err != nil || len(members) != 2 {
		return errors.Join(errors.New("a token and its number are an array of two"), err)
	}
	return errors.Join(json.Unmarshal(members[0], &p.token), json.Unmarshal(members[1], &p.id))
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
	AddedTokens []struct {
		ID      int64  `json:"id"`
		Content string `json:"content"`
		Special bool   `json:"special"`
	} `json:"added_tokens"`
	Normalizer    *part `json:"normalizer"`
	PreTokenizer  *part `json:"pre_tokenizer"`
	PostProcessor *part `json:"post_processor"`
	Model         struct {
		Type         string           `json:"type"`
		Vocab        map[string]int64 `json:"vocab"`
		Unknown      *string          `json:"unk_token"`
		Prefix       *string          `json:"continuing_subword_prefix"`
		Suffix       *string          `json:"end_of_word_suffix"`
		MaxChars     *int             `json:"max_input_chars_per_word"`
		Merges       []merge          `json:"merges"`
		ByteFallback bool             `json:"byte_fallback"`
		IgnoreMerges bool             `json:"ignore_merges"`
	} `json:"model"`
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
	t := &Tokenizer{vocab: f.Model.Vocab, unknown: -1, word: f.Model.Type == "WordPiece", prefix: "##", maxChars: 100}
	m := &f.Model
	if m.Prefix != nil {
		t.prefix = *m.Prefix
	}
	if m.MaxChars != nil {
		t.maxChars = *m.MaxChars
	}
	if m.Unknown != nil {
		id, ok := t.vocab[*m.Unknown]
		if !ok {
			return nil, fmt.Errorf("the token %q for what is unknown is not in the vocabulary", *m.Unknown)
		}
		t.unknown = id
	}
	switch {
	case len(t.vocab) == 0:
		return nil, errors.New("it has no vocabulary")
	case m.Type == "WordPiece":
		if t.unknown < 0 {
			return nil, errors.New("WordPiece needs unk_token")
		}
	case m.Type == "BPE" && !m.ByteFallback && !m.IgnoreMerges && (m.Suffix == nil || *m.Suffix == "") && (m.Prefix == nil || *m.Prefix == ""):
		t.ranks = make(map[merge]int, len(m.Merges))
		for i, pair := range m.Merges {
			t.ranks[pair] = i
		}
	default:
		return nil, fmt.Errorf("its model %s is not WordPiece, nor a BPE without byte_fallback, ignore_merges and affixes", m.Type)
	}
	for _, a := range f.AddedTokens {
		t.added = append(t.added, added{a.Content, a.ID})
	}
	slices.SortStableFunc(t.added, func(a, b added) int { return len(b.text) - len(a.text) }) // the longest that fits is taken
	if f.Truncation != nil {
		t.MaxLength = f.Truncation.MaxLength
	}
	if id, ok := t.vocab["[PAD]"]; ok {
		t.Pad = id
	} else if id, ok := t.vocab["<pad>"]; ok {
		t.Pad = id
	}
	if f.Padding != nil {
		t.Pad = f.Padding.ID
	}
	return t, errors.Join(t.normalizer(f.Normalizer), t.preTokenizer(f.PreTokenizer), t.postProcessor(f.PostProcessor))
}

func flag(b *bool, otherwise bool) bool {
	if b == nil {
		return otherwise
	}
	return *b
}

func (t *Tokenizer) normalizer(p *part) error {
	if p == nil {
		return nil
	}
	switch p.Type {
	case "Sequence":
		for i := range p.Normalizers {
			if err := t.normalizer(&p.Normalizers[i]); err != nil {
				return err
			}
		}
	case "BertNormalizer":
		lower := flag(p.Lowercase, true)
		if flag(p.CleanText, true) {
			t.normalize = append(t.normalize, cleanText)
		}
		if flag(p.Chinese, true) {
			t.normalize = append(t.normalize, spaceChinese)
		}
		if flag(p.StripAccents, lower) {
			t.normalize = append(t.normalize, nfd, dropMarks)
		}
		if lower {
			t.normalize = append(t.normalize, strings.ToLower)
		}
	default:
		step, ok := normalizers[p.Type]
		if !ok {
			return fmt.Errorf("its normalizer %q is not known here", p.Type)
		}
		t.normalize = append(t.normalize, step)
	}
	return nil
}

func (t *Tokenizer) preTokenizer(p *part) error {
	if p == nil {
		return nil
	}
	switch p.Type {
	case "Sequence":
		for i := range p.PreTokenizers {
			if err := t.preTokenizer(&p.PreTokenizers[i]); err != nil {
				return err
			}
		}
	case "BertPreTokenizer":
		t.split = append(t.split, splitBERT)
	case "Whitespace":
		t.split = append(t.split, splitWords)
	case "WhitespaceSplit":
		t.split = append(t.split, strings.Fields)
	case "ByteLevel":
		if p.PrefixSpace {
			t.split = append(t.split, func(s string) []string {
				if strings.HasPrefix(s, " ") {
					return []string{s}
				}
				return []string{" " + s}
			})
		}
		if flag(p.UseRegex, true) {
			t.split = append(t.split, splitGPT2)
		}
		t.split = append(t.split, byteLevel)
	default:
		return fmt.Errorf("its pre-tokenizer %q is not known here", p.Type)
	}
	return nil
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
