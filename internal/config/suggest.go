package config

import "strings"

// nearest gives the name that word was probably meant to be, "" if none is near.
func nearest(word string, names []string) string {
	const far = 4 // letters in ten that may differ
	best, bestDistance := "", len(word)*far/10+1
	for _, name := range names {
		if d := distance(strings.ToLower(word), strings.ToLower(name)); d < bestDistance {
			best, bestDistance = name, d
		}
	}
	return best
}

// distance is the number of letters to insert, delete or replace.
func distance(a, b string) int {
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		diagonal := row[0]
		row[0] = i + 1
		for j := range len(b) {
			cost := diagonal
			if a[i] != b[j] {
				cost++
			}
			diagonal = row[j+1]
			row[j+1] = min(cost, row[j+1]+1, row[j]+1)
		}
	}
	return row[len(b)]
}
