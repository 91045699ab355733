package pbtxt

import (
	"cmp"
	"math/big"
	"slices"
	"strconv"
	"strings"
)

// Policy says which versions are served.
type Policy struct {
	All      bool
	Latest   int // so many of the newest, when All is false and there are no Versions
	Versions []string
}

// policy reads it. A text that does not say wants the newest one.
func (c *Config) policy(p *parsed) error {
	v := p.config.GetVersionPolicy()
	line := p.line(0, "version_policy")
	switch {
	case v.GetAll() != nil:
		c.Policy.All = true
	case v.GetSpecific() != nil:
		for _, n := range v.GetSpecific().GetVersions() {
			if n < 1 {
				return p.refuse("", line, "there is no version %d", n)
			}
			c.Policy.Versions = append(c.Policy.Versions, strconv.FormatInt(n, 10))
		}
		if len(c.Policy.Versions) == 0 {
			return p.refuse("", line, "the policy specific names no versions")
		}
	default:
		c.Policy.Latest = int(min(max(v.GetLatest().GetNumVersions(), 1), 1<<20)) //nolint:mnd // more than anybody has
	}
	return nil
}

// Select gives those of versions that are served, the newest first.
func (p *Policy) Select(versions []string) []string {
	sorted := slices.SortedFunc(slices.Values(versions), func(a, b string) int { return -Compare(a, b) })
	switch {
	case p.All:
		return sorted
	case len(p.Versions) > 0:
		return slices.DeleteFunc(sorted, func(v string) bool { return !slices.Contains(p.Versions, v) })
	default:
		return sorted[:min(max(p.Latest, 1), len(sorted))]
	}
}

// Compare orders versions: by their numbers, part by part.
func Compare(a, b string) int {
	return slices.CompareFunc(strings.Split(a, "."), strings.Split(b, "."), func(x, y string) int {
		m, okM := new(big.Int).SetString(x, 10)
		n, okN := new(big.Int).SetString(y, 10)
		if !okM || !okN {
			return cmp.Compare(x, y)
		}
		return m.Cmp(n)
	})
}
