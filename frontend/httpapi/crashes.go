package httpapi

import (
	"github.com/flambeau-serve/flambeau/internal/infer"
	"github.com/flambeau-serve/flambeau/plugins/crashes"
)

// Crashes are the ends of workers that nobody had asked for.
type Crashes interface {
	// Crashes gives those of a model's version, the latest first; without a version those of all its versions.
	Crashes(ref infer.ModelRef) []crashes.Record
}

// adminCrashes serves GET /admin/models/M/crashes: the latest crashes of each version, or of the one that the parameter version names.
func (a *API) adminCrashes(model string, params []pair) (answer, error) {
	book := a.opts.Admin.Crashes
	if book == nil {
		return answer{}, absent("this server keeps no crashes")
	}
	if err := known(params, "version"); err != nil {
		return answer{}, err
	}
	ref := infer.ModelRef{Name: model}
	if version, ok := param(params, "version"); ok {
		d, err := a.opts.Models.Describe(infer.ModelRef{Name: model, Version: version})
		if err != nil {
			return answer{}, err //nolint:wrapcheck // the model store's words are the client's
		}
		ref.Version = d.Ref.Version // it may have been a label
	} else if err := a.exists(model); err != nil {
		return answer{}, err
	}
	return marshal(struct {
		Crashes []crashes.Record `json:"crashes"`
	}{book.Crashes(ref)})
}
