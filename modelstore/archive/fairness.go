package archive

import (
	"strconv"

	"github.com/goccy/go-yaml/ast"

	"github.com/flambeau-serve/flambeau/internal/infer"
)

// defaultMaxShare is the part of a queue that a client may have where a model does not say.
const defaultMaxShare = 0.5

// fairness takes how clients share the model's queue; a key of off is the answer to a server that has one for all models.
func (r *settingsReader) fairness(e yamlEntry) {
	const want = "a map with key (client_ip, token, header:NAME or off) and maxShare (above 0, at most 1)"
	mapping, ok := e.value.(*ast.MappingNode)
	if !ok {
		r.warn(e, want)
		return
	}
	f := &infer.Fairness{MaxShare: defaultMaxShare}
	for _, sub := range e.entries(mapping) {
		text, ok := sub.scalarText()
		switch sub.key {
		case "key":
			if off, isFlag := sub.boolean(); isFlag && !off { // off is false in YAML 1.1
				text = "off"
			}
			key, known := infer.ParseClientKey(text)
			if !ok || !known {
				r.warn(sub, "client_ip, token, header:NAME or off")
				return
			}
			f.Key = key
		case "maxShare":
			share, err := strconv.ParseFloat(text, 64)
			if !ok || err != nil || !(share > 0 && share <= 1) {
				r.warn(sub, "a number above 0, at most 1")
				return
			}
			f.MaxShare = share
		default:
			r.warn(sub, want)
		}
	}
	r.s.Fairness = f
}
