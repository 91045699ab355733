package rollout

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"math"
	"math/bits"
	"math/rand/v2"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/flambeau-serve/flambeau/internal/fault"
	"github.com/flambeau-serve/flambeau/internal/infer"
)

// Traffic says how requests find a version of their model. Its zero value is TorchServe's rule: a request that names no version is for the default
// one.
type Traffic struct {
	// Labels are further names of versions: a request may name one in the place of a version.
	Labels map[string]string `json:"labels"`
	// Weights are percents of the requests that name no version, by the version or label that they go to. The rest goes to the default version.
	Weights map[string]float64 `json:"weights"`
	// Header is the name of the request header whose value, a version or a label, chooses; "" for TrafficHeader.
	Header string `json:"header,omitempty"`
	// Sticky is where the key of a user is, "header:NAME" or "cookie:NAME": the same key gets the same version. Requests without a key, and all of
	// them when it is "", are spread by chance, those of a sequence together.
	Sticky string `json:"sticky,omitempty"`
	// Spread is where the weights lie. It is made by SetTraffic, and only there to be kept: with it users stay where they are also after a restart.
	Spread []Share `json:"spread,omitempty"`
}

// Share is a part of the hundred percent: the keys from From, up to but without To, go to the version or label Of.
type Share struct {
	Of   string  `json:"of"`
	From float64 `json:"from"`
	To   float64 `json:"to"`
}

// TrafficHeader is the request header that chooses a version or a label of a model whose traffic was set without the name of another header.
const TrafficHeader = "x-flambeau-version"

const (
	mostTargets = 64   // labels, and weights, of one model
	perPercent  = 1000 // the finest weight is a thousandth of a percent
	everything  = 100 * perPercent
)

// labelForm is what a label looks like, so that none is taken for a version number.
var labelForm = regexp.MustCompile(`^[a-z][a-z0-9-]{0,30}$`)

// fieldForm is the form of a header's or a cookie's name.
var fieldForm = regexp.MustCompile("^[!#$%&'*+.^_`|~0-9A-Za-z-]{1,100}$")

// routes are a model's Traffic, ready for use. They are replaced and never changed.
type routes struct {
	traffic Traffic
	header  string
	cookie  bool // the key is in a cookie
	key     string
	shares  []share // in their order
}

// share is a Share in thousandths of a percent.
type share struct {
	of       string
	from, to int
}

// IsZero says that nothing is set.
func (t Traffic) IsZero() bool {
	return len(t.Labels) == 0 && len(t.Weights) == 0 && t.Header == "" && t.Sticky == ""
}

// Traffic gives what was set for a model.
func (m *Manager) Traffic(name string) (Traffic, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.models[name] == nil {
		return Traffic{}, fault.Newf(fault.ModelNotFound, "Model not found: %s", name)
	}
	return m.traffic[name].copy(), nil
}

// copy gives the Traffic of routes, which may be nil.
func (r *routes) copy() Traffic {
	t := Traffic{Labels: map[string]string{}, Weights: map[string]float64{}}
	if r == nil {
		return t
	}
	maps.Copy(t.Labels, r.traffic.Labels)
	maps.Copy(t.Weights, r.traffic.Weights)
	t.Header, t.Sticky = r.traffic.Header, r.traffic.Sticky
	for _, s := range r.shares {
		t.Spread = append(t.Spread, Share{Of: s.of, From: float64(s.from) / perPercent, To: float64(s.to) / perPercent})
	}
	return t
}

// SetTraffic replaces what was set for a model, and tells a Change. Where weights change, as few users as possible get another version.
func (m *Manager) SetTraffic(ctx context.Context, name string, t Traffic) error {
	m.mu.Lock()
	mod, old := m.models[name], m.traffic[name]
	if mod == nil {
		m.mu.Unlock()
		return fault.Newf(fault.ModelNotFound, "Model not found: %s", name)
	}
	made, err := newRoutes(t, old)
	if err == nil {
		err = mod.checkTraffic(name, t, old.copy())
	}
	if err == nil {
		m.putTraffic(name, made)
	}
	m.mu.Unlock()
	if err != nil {
		return err
	}
	m.tellTraffic(ctx, name, difference(old.copy(), made.copy()))
	return nil
}

// RestoreTraffic sets what was kept of an earlier run, before the models are loaded: no Change is told, and what leads to a version that is not there
// yet waits for it. The errors are of Traffics that cannot have been kept by SetTraffic; the others are set.
func (m *Manager) RestoreTraffic(kept map[string]Traffic) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	var bad []string
	for _, name := range slices.Sorted(maps.Keys(kept)) {
		made, err := newRoutes(kept[name], nil)
		if err != nil {
			bad = append(bad, name+": "+err.Error())
			continue
		}
		m.putTraffic(name, made)
	}
	if len(bad) > 0 {
		return fault.New(fault.BadRequest, "the traffic that was kept is not restored for "+strings.Join(bad, "; "), nil)
	}
	return nil
}

// putTraffic keeps routes; m.mu is held.
func (m *Manager) putTraffic(name string, made *routes) {
	if made.traffic.IsZero() {
		delete(m.traffic, name)
		return
	}
	if m.traffic == nil {
		m.traffic = map[string]*routes{}
	}
	m.traffic[name] = made
}

// dropTraffic forgets the labels and weights that lead to a version that is being removed, and says which; m.mu is held.
func (m *Manager) dropTraffic(ref infer.ModelRef, last bool) (lost string) {
	old := m.traffic[ref.Name]
	if old == nil {
		return ""
	}
	if last {
		delete(m.traffic, ref.Name)
		return difference(old.copy(), Traffic{})
	}
	t := old.copy()
	delete(t.Weights, ref.Version)
	for label, version := range t.Labels {
		if version == ref.Version {
			delete(t.Labels, label)
			delete(t.Weights, label)
		}
	}
	made, err := newRoutes(t, old)
	if err != nil { // there is only less than before
		return ""
	}
	m.putTraffic(ref.Name, made)
	return difference(old.copy(), t)
}

// tellTraffic tells a Change of a model's traffic; what is "" for none.
func (m *Manager) tellTraffic(ctx context.Context, name, what string) {
	if what == "" {
		return
	}
	m.changed(Change{At: time.Now(), Ref: infer.ModelRef{Name: name}, Kind: ChangeTraffic, Actor: ActorOf(ctx), Reason: what})
}

// find is resolve for a version or a label; m.mu is held.
func (m *Manager) find(ref infer.ModelRef) (*Version, *model, error) {
	if r, mod := m.traffic[ref.Name], m.models[ref.Name]; r != nil && mod != nil && mod.versions[ref.Version] == nil {
		if version, ok := r.traffic.Labels[ref.Version]; ok {
			ref.Version = version
		}
	}
	return m.resolve(ref)
}

// Route gives the version that a request is for: the one that ref names by its version or label; else the one that the request's header chooses; else
// one by the weights, if it has workers; else the default one. header gives a request header's value, "" for none, whatever case name is in. sequence gives
// the sequence that the request belongs to, "" for none: where the request has no key of a user, that is its key, so that a sequence stays together. It
// may be nil, and is called only where it matters.
func (m *Manager) Route(ref infer.ModelRef, header func(name string) string, sequence func() string) (*Version, error) {
	m.mu.Lock()
	r := m.traffic[ref.Name]
	if ref.Version != "" || r == nil {
		v, _, err := m.find(ref)
		m.mu.Unlock()
		return v, err
	}
	m.mu.Unlock()
	asked := strings.TrimSpace(header(r.header))
	target := cmp.Or(asked, r.pick(ref.Name, header, sequence))
	m.mu.Lock()
	standard, mod, err := m.find(ref)
	var v *Version
	if err == nil && target != "" {
		v = mod.target(target, r)
	}
	m.mu.Unlock()
	switch {
	case err != nil:
		return nil, err
	case asked != "" && v == nil:
		return nil, r.unknown(ref.Name, asked)
	case v == nil, asked == "" && !v.HasWorkers():
		return standard, nil
	}
	return v, nil
}

// target gives the version that a version's name or a label leads to, nil for none; the manager's mu is held.
func (mod *model) target(name string, r *routes) *Version {
	if v := mod.versions[name]; v != nil || r == nil {
		return v
	}
	return mod.versions[r.traffic.Labels[name]]
}

func (r *routes) unknown(model, asked string) error {
	f := fault.Newf(fault.VersionNotFound, "Model version: %s does not exist for model: %s", asked, model)
	f.Hint = fmt.Sprintf("the request's header %s chooses a version or a label of the model, and there is no %q", r.header, asked)
	return f
}

// pick gives the version or label for a request by the weights, "" for the default version.
func (r *routes) pick(model string, header func(string) string, sequence func() string) string {
	if len(r.shares) == 0 {
		return ""
	}
	point, key := 0, r.keyOf(header)
	if key == "" && sequence != nil {
		key = sequence()
	}
	if key != "" {
		point = pointOf(model, key)
	} else {
		point = rand.IntN(everything) //nolint:gosec // nothing secret
	}
	for _, s := range r.shares {
		if point >= s.from && point < s.to {
			return s.of
		}
	}
	return ""
}

// keyOf gives the request's key.
func (r *routes) keyOf(header func(string) string) string {
	switch {
	case r.key == "":
		return ""
	case !r.cookie:
		return header(r.key)
	}
	for pair := range strings.SplitSeq(header("cookie"), ";") {
		if name, value, ok := strings.Cut(strings.TrimSpace(pair), "="); ok && name == r.key {
			return value
		}
	}
	return ""
}

// pointOf is the point of a key on the hundred percent: the same one in every run of every release.
func pointOf(model, key string) int {
	const offset, prime = 14695981039346656037, 1099511628211 // FNV-1a
	h := uint64(offset)
	for _, text := range [...]string{model, "\x00", key} {
		for i := range len(text) {
			h = (h ^ uint64(text[i])) * prime
		}
	}
	h ^= h >> 33 // MurmurHash3's last steps: FNV's high bits hardly depend on the last bytes
	h *= 0xff51afd7ed558ccd
	h ^= h >> 33
	h *= 0xc4ceb9fe1a85ec53
	h ^= h >> 33
	high, _ := bits.Mul64(h, everything)
	return int(high)
}

// newRoutes checks what can be checked without knowing the versions, and lays the weights out so that as little as possible changes against old,
// or against t's own Spread when old is nil.
func newRoutes(t Traffic, old *routes) (*routes, error) {
	r := &routes{traffic: t, header: cmp.Or(t.Header, TrafficHeader)}
	r.traffic.Labels, r.traffic.Weights, r.traffic.Spread = maps.Clone(t.Labels), maps.Clone(t.Weights), nil
	if len(t.Labels) > mostTargets || len(t.Weights) > mostTargets {
		return nil, fault.Newf(fault.BadRequest, "a model has at most %d labels and %d weights", mostTargets, mostTargets)
	}
	for _, label := range slices.Sorted(maps.Keys(t.Labels)) {
		if err := checkLabel(label, t.Labels[label]); err != nil {
			return nil, err
		}
	}
	wanted, err := units(t.Weights)
	if err != nil {
		return nil, err
	}
	if t.Header != "" && !fieldForm.MatchString(t.Header) {
		return nil, fault.Newf(fault.BadRequest, "header is %q, which is no name of a request header", t.Header)
	}
	if err := r.setKey(t.Sticky); err != nil {
		return nil, err
	}
	before := fromSpread(t.Spread)
	if old != nil {
		before = old.shares
	}
	r.shares = layOut(before, wanted)
	return r, nil
}

func checkLabel(label, version string) error {
	switch {
	case !labelForm.MatchString(label):
		return fault.Newf(fault.BadRequest, "%q cannot be a label: a label begins with one of a-z and has at most 31 of a-z, 0-9 and -", label)
	case label == "all" || label == "default":
		return fault.Newf(fault.BadRequest, "%q cannot be a label: it stands for something else already", label)
	case version == "":
		return fault.Newf(fault.BadRequest, "the label %q has no version", label)
	}
	return nil
}

// units checks weights and gives them in thousandths of a percent, without those that are 0.
func units(weights map[string]float64) (map[string]int, error) {
	all, sum := map[string]int{}, 0
	for _, target := range slices.Sorted(maps.Keys(weights)) {
		w := weights[target]
		n := int(math.Round(min(max(w, -1), 101) * perPercent))
		switch {
		case target == "":
			return nil, fault.New(fault.BadRequest, "a weight has no version and no label", nil)
		case math.IsNaN(w) || w < 0 || w > 100:
			return nil, fault.Newf(fault.BadRequest, "the weight of %q is %v: it is a percent, from 0 to 100", target, w)
		case w > 0 && n == 0:
			return nil, fault.Newf(fault.BadRequest, "the weight of %q is %v: the least one is %v percent", target, w, 1.0/perPercent)
		case n > 0:
			all[target] = n
			sum += n
		}
	}
	if sum > everything {
		return nil, fault.Newf(fault.BadRequest, "the weights sum up to %v: at most 100 percent can be given away, and what is left goes to the default version",
			percent(sum))
	}
	return all, nil
}

// setKey reads where the key is.
func (r *routes) setKey(sticky string) error {
	if sticky == "" {
		return nil
	}
	kind, name, _ := strings.Cut(sticky, ":")
	if kind != "header" && kind != "cookie" || !fieldForm.MatchString(name) {
		return fault.Newf(fault.BadRequest, "sticky is %q: it has to be header:NAME or cookie:NAME, where the request has the key of its user", sticky)
	}
	r.cookie, r.key = kind == "cookie", name
	return nil
}

// checkTraffic checks names against the versions that there are. What was kept already may wait for a version that is not there yet; the manager's mu
// is held.
func (mod *model) checkTraffic(name string, t, old Traffic) error {
	missing := func(what, version string) error {
		f := fault.Newf(fault.VersionNotFound, "%s: the model %s has no version %q", what, name, version)
		f.Hint = "there are " + strings.Join(slices.Sorted(maps.Keys(mod.versions)), ", ") + "; register the version first"
		return f
	}
	for _, label := range slices.Sorted(maps.Keys(t.Labels)) {
		version := t.Labels[label]
		switch {
		case mod.versions[label] != nil:
			return fault.Newf(fault.BadRequest, "%q cannot be a label: the model %s has a version of that name", label, name)
		case mod.versions[version] == nil && old.Labels[label] != version:
			return missing(`label "`+label+`"`, version)
		}
	}
	for _, target := range slices.Sorted(maps.Keys(t.Weights)) {
		_, isLabel := t.Labels[target]
		_, was := old.Weights[target]
		if !isLabel && mod.versions[target] == nil && (!was || labelForm.MatchString(target)) {
			return missing("weight", target)
		}
	}
	return nil
}

// fromSpread gives the shares of a kept layout; what makes no sense is left out.
func fromSpread(spread []Share) []share {
	var all []share
	for _, s := range spread {
		from, to := int(math.Round(s.From*perPercent)), int(math.Round(s.To*perPercent))
		if from >= 0 && from < to && to <= everything && !slices.ContainsFunc(all, func(o share) bool { return from < o.to && o.from < to }) {
			all = append(all, share{s.Of, from, to})
		}
	}
	slices.SortFunc(all, func(a, b share) int { return a.from - b.from })
	return all
}

// layOut gives the shares of wanted weights: what lies somewhere in before stays there, what is too much is cut from the end of it, and what is new
// comes into the first gaps. So a weight that grows takes only from the rest, and one that shrinks gives only to it.
func layOut(before []share, wanted map[string]int) []share {
	left := maps.Clone(wanted)
	var kept []share
	for _, s := range before {
		n := min(s.to-s.from, left[s.of])
		left[s.of] -= n
		if n > 0 {
			kept = append(kept, share{s.of, s.from, s.from + n})
		}
	}
	gaps := gapsOf(kept)
	for _, target := range slices.Sorted(maps.Keys(left)) {
		for left[target] > 0 && len(gaps) > 0 {
			gap := &gaps[0]
			n := min(gap.to-gap.from, left[target])
			kept = append(kept, share{target, gap.from, gap.from + n})
			left[target] -= n
			if gap.from += n; gap.from == gap.to {
				gaps = gaps[1:]
			}
		}
	}
	slices.SortFunc(kept, func(a, b share) int { return a.from - b.from })
	return join(kept)
}

// gapsOf gives what no share covers.
func gapsOf(shares []share) []share {
	var gaps []share
	end := 0
	for _, s := range shares {
		if s.from > end {
			gaps = append(gaps, share{from: end, to: s.from})
		}
		end = s.to
	}
	if end < everything {
		gaps = append(gaps, share{from: end, to: everything})
	}
	return gaps
}

// join makes one of shares of the same that touch.
func join(shares []share) []share {
	var all []share
	for _, s := range shares {
		if n := len(all); n > 0 && all[n-1].of == s.of && all[n-1].to == s.from {
			all[n-1].to = s.to
			continue
		}
		all = append(all, s)
	}
	return all
}

// named gives the labels of a version, sorted, and the percent of the model's requests without a version that it gets; m.mu is held.
func (m *Manager) named(ref infer.ModelRef) (labels []string, weight float64) {
	mod, r := m.models[ref.Name], m.traffic[ref.Name]
	if mod == nil {
		return nil, 0
	}
	mine, given := 0, 0
	if r != nil {
		labels = mod.labels(r, ref.Version)
		mine, given = mod.given(r, ref.Version)
	}
	if mod.standard == ref.Version {
		mine += everything - given
	}
	return labels, float64(mine) / perPercent
}

// labels gives the labels that lead to a version, sorted; the manager's mu is held.
func (mod *model) labels(r *routes, to string) []string {
	var labels []string
	for label, version := range r.traffic.Labels {
		if version == to && mod.versions[label] == nil {
			labels = append(labels, label)
		}
	}
	slices.Sort(labels)
	return labels
}

// given says how much is given away to a version, and to all of those that are there; the manager's mu is held.
func (mod *model) given(r *routes, to string) (mine, all int) {
	for _, s := range r.shares {
		v := mod.target(s.of, r)
		if v == nil {
			continue
		}
		all += s.to - s.from
		if v.ref.Version == to {
			mine += s.to - s.from
		}
	}
	return mine, all
}

// difference says in words what changed.
func difference(old, now Traffic) string {
	var all []string
	texts := func(what string, before, after map[string]string) {
		for _, name := range slices.Sorted(maps.Keys(merged(before, after))) {
			was, is := before[name], after[name]
			switch {
			case was == is:
			case is == "":
				all = append(all, what+" "+name+" removed (was "+was+")")
			case was == "":
				all = append(all, what+" "+name+": "+is)
			default:
				all = append(all, what+" "+name+": "+is+" (was "+was+")")
			}
		}
	}
	texts("label", old.Labels, now.Labels)
	texts("weight", percents(old.Weights), percents(now.Weights))
	texts("setting", map[string]string{"header": old.Header, "sticky": old.Sticky}, map[string]string{"header": now.Header, "sticky": now.Sticky})
	return strings.Join(all, ", ")
}

func merged(a, b map[string]string) map[string]string {
	all := maps.Clone(a)
	if all == nil {
		all = map[string]string{}
	}
	maps.Copy(all, b)
	return all
}

func percents(weights map[string]float64) map[string]string {
	all := make(map[string]string, len(weights))
	for target, w := range weights {
		all[target] = percent(int(math.Round(w * perPercent)))
	}
	return all
}

func percent(units int) string {
	return strconv.FormatFloat(float64(units)/perPercent, 'f', -1, 64) + " %"
}
