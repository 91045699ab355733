package deploy

import (
	"path"
	"path/filepath"
	"slices"
	"strings"

	"github.com/flambeau-serve/flambeau/modelstore/watch"
)

// names gives the names under which an entry is followed; "" stands for its own name.
func (d *Deployer) names(e *watch.Entry) []string {
	var names []string
	if d.opts.Scope.All && !d.renamed[e.Path] {
		names = []string{""}
	}
	for _, l := range d.opts.Scope.Listed {
		if d.stands(l.URL, e) && !slices.Contains(names, l.Name) {
			names = append(names, l.Name)
		}
	}
	for _, given := range d.aliases[e.Path] {
		if !slices.Contains(names, given) {
			names = append(names, given)
		}
	}
	return names
}

// stands says whether a URL, as the configuration or a registration has it, stands for the entry. TorchServe looks for the last part of what is no
// URL in the store; a folder elsewhere goes before a folder of the store.
func (d *Deployer) stands(url string, e *watch.Entry) bool {
	if strings.Contains(url, "://") {
		return false
	}
	place := path.Clean(filepath.ToSlash(url))
	base := place[strings.LastIndexAny(place, `/\`)+1:]
	if base != place && e.Kind != watch.Mar && e.Kind != watch.Tarball || e.Versioned {
		place = d.inStore(url, place)
	} else if e.Path == base {
		return true
	}
	return e.Path == place || e.Versioned && path.Dir(e.Path) == place
}

// inStore gives the place in the store of a path, which may be relative to it or lead into it.
func (d *Deployer) inStore(url, place string) string {
	root, err := filepath.Abs(d.opts.Root)
	if err != nil || !filepath.IsAbs(url) {
		return place
	}
	if rel, err := filepath.Rel(root, filepath.Clean(url)); err == nil && filepath.IsLocal(rel) {
		return filepath.ToSlash(rel)
	}
	return place
}
