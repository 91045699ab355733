package tokenize

import (
	"errors"
	"fmt"
)

// place is a token of the file's post-processor, or where the text's own tokens come.
type place struct {
	id   int64
	kind int64 // what token_type_ids says
	text bool
}

// maxPlaces bounds what post-processors may make of each other.
const maxPlaces = 1 << 12

// surrounded puts a text's tokens where they belong.
func (t *Tokenizer) surrounded(inner []int64) Encoded {
	var e Encoded
	typed := false
	for _, p := range t.around {
		if p.text {
			e.IDs = append(e.IDs, inner...)
			typed = typed || p.kind != 0 && len(inner) > 0
		} else {
			e.IDs = append(e.IDs, p.id)
			typed = typed || p.kind != 0
		}
	}
	if !typed {
		return e
	}
	for _, p := range t.around {
		n := 1
		if p.text {
			n = len(inner)
		}
		for range n {
			e.Types = append(e.Types, p.kind)
		}
	}
	return e
}

// postProcessor finds out what comes around a text. A processor makes sequences of tokens of sequences of tokens, and the next one makes others of these; in the end they
// stand one behind another.
func (t *Tokenizer) postProcessor(p *stage) error {
	all := [][]place{{{text: true}}}
	if p != nil {
		var err error
		if all, err = t.processed(p, all); err != nil {
			return err
		}
	}
	for _, sequence := range all {
		t.around = append(t.around, sequence...)
	}
	return nil
}

func (t *Tokenizer) processed(p *stage, all [][]place) ([][]place, error) {
	total := 0
	for _, sequence := range all {
		total += len(sequence)
	}
	if total > maxPlaces {
		return nil, fmt.Errorf("its post-processors put more than %d tokens around a text", maxPlaces)
	}
	switch p.Type {
	case typeSequence:
		for i := range p.Processors {
			var err error
			if all, err = t.processed(&p.Processors[i], all); err != nil {
				return nil, err
			}
		}
	case "ByteLevel": // it moves offsets, which nobody asks for
	case "BertProcessing":
		t.specials += 2
		return p.bert(all), nil
	case "RobertaProcessing":
		t.specials += 2
		return p.roberta(all), nil
	case "TemplateProcessing":
		return t.template(p, all)
	default:
		return nil, fmt.Errorf("its post-processor %q is not known here", p.Type)
	}
	return all, nil
}

// bert puts [CLS] before the first sequence, and [SEP] behind each.
func (p *stage) bert(all [][]place) (made [][]place) {
	for i, sequence := range all {
		sep := place{id: p.Sep.id}
		if i == 0 {
			sequence = append([]place{{id: p.Cls.id}}, sequence...)
		} else {
			sep.kind = 1
		}
		made = append(made, append(sequence, sep))
	}
	return made
}

// roberta puts <s> before the first sequence, </s> before each other and behind each. All count as one part.
func (p *stage) roberta(all [][]place) (made [][]place) {
	begin := place{id: p.Cls.id}
	for _, sequence := range all {
		sequence = append(append([]place{begin}, sequence...), place{id: p.Sep.id})
		setKind(sequence, 0)
		made = append(made, sequence)
		begin.id = p.Sep.id
	}
	return made
}

func setKind(sequence []place, kind int64) {
	for i := range sequence {
		sequence[i].kind = kind
	}
}

// template makes what a template says: that for one text of one sequence, that for two of two.
func (t *Tokenizer) template(p *stage, all [][]place) ([][]place, error) {
	for _, member := range p.Single {
		if special := member.SpecialToken; special != nil {
			t.specials += len(p.SpecialTokens[special.ID].IDs)
		}
	}
	template := p.Single
	switch len(all) {
	case 1:
	case 2:
		template = p.Pair
	default:
		return nil, errors.New("its post-processor TemplateProcessing comes behind another one of its kind that gives more than two sequences, and is for one or two")
	}
	var made [][]place
	total := 0
	for _, member := range template {
		sequence, err := p.member(&member, all)
		if err != nil {
			return nil, fmt.Errorf("its post-processor TemplateProcessing: %w", err)
		}
		if total += len(sequence); total > maxPlaces {
			return nil, fmt.Errorf("its post-processor TemplateProcessing puts more than %d tokens around a text", maxPlaces)
		}
		made = append(made, sequence)
	}
	return made, nil
}

// member gives what a member of a template stands for.
func (p *stage) member(m *templateMember, all [][]place) ([]place, error) {
	switch {
	case m.SpecialToken != nil:
		special, ok := p.SpecialTokens[m.SpecialToken.ID]
		if !ok {
			return nil, fmt.Errorf("the token %q is not among its special tokens", m.SpecialToken.ID)
		}
		var sequence []place
		for _, id := range special.IDs {
			sequence = append(sequence, place{id: id, kind: m.SpecialToken.Type})
		}
		return sequence, nil
	case m.Sequence == nil || m.Sequence.ID != "A" && m.Sequence.ID != "B":
		return nil, errors.New("a member is neither a SpecialToken nor the Sequence A or B")
	}
	at := 0
	if m.Sequence.ID == "B" {
		at = 1
	}
	if at >= len(all) {
		return nil, errors.New("the template for one text has a second one, $B")
	}
	sequence := append([]place(nil), all[at]...)
	setKind(sequence, m.Sequence.Type)
	return sequence, nil
}
