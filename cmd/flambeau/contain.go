package main

import "github.com/flambeau-serve/flambeau/internal/fault"

// reporter is told of panics that were contained; nil tells nobody.
type reporter func(error)

// contain calls f, and tells of a panic in it, which it gives.
func (r reporter) contain(doing string, f func()) error {
	return fault.ContainAndTell(doing, f, r, nil)
}
