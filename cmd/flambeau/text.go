package main

import (
	"fmt"
	"strings"
	"time"
)

// printable keeps texts that clients or archives chose from doing something to a terminal or a table.
func printable(s string) string {
	return strings.Map(func(r rune) rune {
		if r < ' ' || r >= 0x7f && r < 0xa0 || r == '\u2028' || r == '\u2029' || r >= '\u202a' && r <= '\u202e' || r >= '\u2066' && r <= '\u2069' {
			return '?'
		}
		return r
	}, s)
}

// oneLine is a text of several lines on one, printable.
func oneLine(s string) string {
	return printable(strings.ReplaceAll(strings.TrimRight(s, "\r\n"), "\n", "; "))
}

// orDash is what stands in a table for nothing.
func orDash(s string) string {
	if s == "" {
		return "-"
	}
	return s
}

func bytesText(n int64) string {
	const mega = 1 << 20
	if n == 0 {
		return "-"
	}
	return fmt.Sprintf("%d MiB", (n+mega/2)/mega)
}

// sizeText is a file's size.
func sizeText(n int64) string {
	const kilo = 1 << 10
	switch {
	case n < kilo:
		return fmt.Sprintf("%d B", n)
	case n < kilo*kilo:
		return fmt.Sprintf("%d KiB", (n+kilo/2)/kilo)
	}
	return bytesText(n)
}

// millisText is a time in milliseconds with as many digits as one can use.
func millisText(ms float64) string {
	switch {
	case ms < 9.95:
		return fmt.Sprintf("%.1fms", ms)
	case ms < 999.5:
		return fmt.Sprintf("%.0fms", ms)
	case ms < 59_950:
		return fmt.Sprintf("%.1fs", ms/1000)
	}
	return spanText(time.Duration(ms * float64(time.Millisecond)))
}

// spanText is a time of seconds to years in its largest unit.
func spanText(d time.Duration) string {
	const day = 24 * time.Hour
	switch {
	case d < time.Minute:
		return fmt.Sprintf("%ds", max(d, 0)/time.Second)
	case d < time.Hour:
		return fmt.Sprintf("%dm", d/time.Minute)
	case d < 2*day:
		return fmt.Sprintf("%dh", d/time.Hour)
	}
	return fmt.Sprintf("%dd", d/day)
}

// ago says how long ago a time was, "-" for none.
func (p *program) ago(t time.Time) string {
	if t.IsZero() {
		return "-"
	}
	return spanText(p.clock().Sub(t)) + " ago"
}

// clock gives the time of now.
func (p *program) clock() time.Time {
	if p.now != nil {
		return p.now()
	}
	return time.Now()
}

// shortDigest is as much of a digest as people compare, and as --to of a rollback takes.
func shortDigest(digest string) string {
	const enough = 12
	if _, hex, ok := strings.Cut(digest, ":"); ok {
		digest = hex
	}
	return printable(digest[:min(len(digest), enough)])
}
