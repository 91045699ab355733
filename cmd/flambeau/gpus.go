package main

import "strings"

// visibleGPUs counts the entries of CUDA_VISIBLE_DEVICES; as for CUDA, one that is negative hides those after it.
func visibleGPUs(list string) int {
	n := 0
	for entry := range strings.SplitSeq(list, ",") {
		entry = strings.TrimSpace(entry)
		if entry == "" || strings.HasPrefix(entry, "-") {
			break
		}
		n++
	}
	return n
}
