package watch

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"
)

// verdict is what a look into an entry's content has given.
type verdict struct {
	// problem says why it is not complete, "" when it is.
	problem string
	// passing says that the problem may go away without a change of the entry: it could not be read.
	passing bool
	// changed says that it changed while it was looked at, so that nothing is known.
	changed bool
}

// record is what is known of one entry.
type record struct {
	seen       found
	quietSince time.Time // since when it has not changed
	judged     *verdict  // nil while its present content was not looked into
	look       uint64    // the look into it that runs, 0 for none
	state      State
	reason     string
	since      time.Time // since when it has the state and the fingerprint
	settledAt  time.Time // when it last became settled, with any content
	settledID  identity  // the file that it was then
}

// book keeps the records of all entries, and decides when one is settled. It knows no clock and no files.
type book struct {
	settle, folderSettle time.Duration

	records map[string]*record
	gone    map[string]time.Time // of entries that are gone: settledAt, while it is of use
	looks   uint64               // how many looks there were
}

func newBook(settle, folderSettle time.Duration) *book {
	return &book{settle: settle, folderSettle: folderSettle, records: map[string]*record{}, gone: map[string]time.Time{}}
}

// longAgo is how old a change must be to be believed at first sight, by a clock that may be the file server's and not ours.
const longAgo = time.Minute

// quietFrom is when the quiet time of an entry begins that was just seen in a new form.
func quietFrom(now time.Time, f found) time.Time {
	if !f.newest.IsZero() && now.Sub(f.newest) > longAgo {
		return f.newest
	}
	return now
}

// take takes over what a scan has found.
func (b *book) take(now time.Time, all []found) {
	present := make(map[string]bool, len(all))
	for _, f := range all {
		if f.unknown && b.conceal(now, f, present) {
			continue
		}
		present[f.path] = true
		r := b.records[f.path]
		switch {
		case r == nil:
			r = &record{settledAt: b.gone[f.path]}
			b.records[f.path] = r
			r.change(now, f, "it is new")
		case r.seen.fingerprint != f.fingerprint || r.seen.kind != f.kind:
			r.change(now, f, changeOf(r.seen, f))
		case r.state == Changing && r.seen.beside != f.beside:
			r.quietSince = now
		}
		r.seen = f
		if f.problem != "" {
			r.set(now, Incomplete, f.problem)
		}
	}
	for path, r := range b.records {
		if !present[path] {
			b.gone[path] = r.settledAt
			delete(b.records, path)
		}
	}
	maps.DeleteFunc(b.gone, func(_ string, at time.Time) bool { return now.Sub(at) > max(maxPace, b.folderSettle) })
}

// conceal handles a folder that cannot be read: the versions that it held are still entries, which cannot be read now. It says whether there are any.
func (b *book) conceal(now time.Time, f found, present map[string]bool) bool {
	held := false
	for path, r := range b.records {
		if r.seen.versioned && r.seen.name == f.path {
			held, present[path] = true, true
			if r.seen.fingerprint != f.fingerprint {
				r.judged, r.look = nil, 0
				r.seen.fingerprint, r.seen.problem = f.fingerprint, f.problem
				r.since = now
			}
			r.set(now, Incomplete, f.problem)
		}
	}
	return held
}

// versioned says whether a folder of the store is known to hold versions.
func (b *book) versioned(folder string) bool {
	for _, r := range b.records {
		if r.seen.versioned && r.seen.name == folder {
			return true
		}
	}
	return false
}

// plugin says whether an entry of the store is known as a plugin.
func (b *book) plugin(path string) bool {
	r := b.records[path]
	return r != nil && r.seen.kind == Plugin
}

// changeOf says what has become of an entry.
func changeOf(before, after found) string {
	switch {
	case after.bytes > before.bytes:
		return "it is still growing"
	case after.bytes < before.bytes:
		return "it has shrunk"
	default:
		return "it has just changed"
	}
}

func (r *record) change(now time.Time, f found, what string) {
	r.quietSince, r.judged, r.look = quietFrom(now, f), nil, 0
	r.state, r.since = Changing, now
	r.reason = fmt.Sprintf("%s: %d bytes", what, f.bytes)
}

func (r *record) set(now time.Time, state State, reason string) {
	if r.state != state {
		r.since = now
	}
	r.state, r.reason = state, reason
}

// maxPace is how far apart two settled forms of one entry are at most kept: whatever comes in one second makes two of them.
const maxPace = time.Second

// patience is how long an entry must not change, and how far apart it may settle again and again.
func (b *book) patience(f found) (quiet, pace time.Duration) {
	const paces = 5 // settle times: a short settle time wants a fast pace
	quiet = b.settle
	if f.patient {
		quiet = b.folderSettle
	}
	return quiet, min(paces*quiet, max(quiet, maxPace))
}

// due is when an entry may be looked into, zero when there is nothing to look for.
func (b *book) due(r *record) time.Time {
	if r.judged != nil || r.look != 0 || r.seen.problem != "" {
		return time.Time{}
	}
	quiet, pace := b.patience(r.seen)
	at := r.quietSince.Add(quiet)
	if next := r.settledAt.Add(pace); !r.settledAt.IsZero() && next.After(at) {
		at = next
	}
	return at
}

// next is when the next entry is due; zero: none will be without a change.
func (b *book) next() time.Time {
	var first time.Time
	for _, r := range b.records {
		if at := b.due(r); !at.IsZero() && (first.IsZero() || at.Before(first)) {
			first = at
		}
	}
	return first
}

// look is one entry whose content is to be looked into.
type look struct {
	found
	id   uint64
	deep bool // to its last byte
}

// long says whether the whole content is read.
func (l look) long() bool { return l.deep || l.kind == Tarball }

// ready gives the entries that are to be looked into now, by path. Those without content to look into are settled.
func (b *book) ready(now time.Time) []look {
	var all []look
	for _, path := range slices.Sorted(maps.Keys(b.records)) {
		r := b.records[path]
		if at := b.due(r); at.IsZero() || at.After(now) {
			continue
		}
		if r.seen.file == "" {
			r.judge(now, verdict{})
			continue
		}
		b.looks++
		r.look = b.looks
		id, _, sparse := details(r.seen.stat)
		// A zip file has its directory at the end. When the file was not written from the start to the end, that says nothing of the rest.
		deep := sparse || id == r.settledID && id != identity{}
		l := look{found: r.seen, id: r.look, deep: deep}
		if l.long() && r.state == Changing {
			r.reason = fmt.Sprintf("it is being read to its end: %d bytes", r.seen.bytes)
		}
		all = append(all, l)
	}
	return all
}

// judge notes what a look into an entry has given.
func (r *record) judge(now time.Time, v verdict) {
	if v.changed {
		r.quietSince = now
		return
	}
	r.judged = &v
	if v.problem != "" {
		r.set(now, Incomplete, v.problem)
		return
	}
	r.settledAt = now
	if r.seen.stat != nil {
		r.settledID, _, _ = details(r.seen.stat)
	}
	r.set(now, Settled, "")
}

// wanted says whether what a look will give is still of use: the entry has not changed since.
func (b *book) wanted(l look) bool {
	r := b.records[l.path]
	return r != nil && r.look == l.id
}

// looked notes what a look has given.
func (b *book) looked(now time.Time, l look, v verdict) {
	if b.wanted(l) {
		r := b.records[l.path]
		r.look = 0
		r.judge(now, v)
	}
}

// release forgets the looks that do not run: their entries are looked into again.
func (b *book) release(runs func(id uint64) bool) {
	for _, r := range b.records {
		if r.look != 0 && !runs(r.look) {
			r.look = 0
		}
	}
}

// reconsider makes the entries that are incomplete be looked into again: those that could not be read, or all.
func (b *book) reconsider(all bool) {
	for _, r := range b.records {
		if r.judged != nil && r.judged.problem != "" && (all || r.judged.passing) {
			r.judged = nil
		}
	}
}

// entries lists what the book knows, by path.
func (b *book) entries() []Entry {
	all := make([]Entry, 0, len(b.records))
	for _, r := range b.records {
		all = append(all, Entry{
			Path: r.seen.path, Kind: r.seen.kind, Name: r.seen.name, Version: r.seen.version, Versioned: r.seen.versioned, Superseded: r.seen.superseded,
			Fingerprint: r.seen.fingerprint, Bytes: r.seen.bytes, State: r.state, Reason: r.reason, Since: r.since,
		})
	}
	slices.SortFunc(all, func(a, b Entry) int { return strings.Compare(a.Path, b.Path) })
	return all
}
