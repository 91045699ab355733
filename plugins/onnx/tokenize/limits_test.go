package tokenize

import (
	"errors"
	"math"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"testing"
)

const aModel = `"model": {"type": "WordLevel", "vocab": {"u": 0}, "unk_token": "u"}`

func parsedText(t *testing.T, file string) *Tokenizer {
	t.Helper()
	k, err := Parse([]byte(file))
	if err != nil {
		t.Fatal(err)
	}
	return k
}

// TestTextsDoNotGrowWithoutBound: steps that make much of little are stopped, whether it is one of them or many.
func TestTextsDoNotGrowWithoutBound(t *testing.T) {
	t.Parallel()
	chain := func(kind, step string, times int) string {
		return `{"type": "Sequence", "` + kind + `": [` + strings.TrimSuffix(strings.Repeat(step+",", times), ",") + `]}`
	}
	for name, file := range map[string]string{
		"a chain of Replace":      `{"normalizer": ` + chain("normalizers", `{"type": "Replace", "pattern": {"String": "a"}, "content": "aa"}`, 30) + `, ` + aModel + `}`,
		"a Replace with much":     `{"normalizer": {"type": "Replace", "pattern": {"Regex": "a"}, "content": "` + strings.Repeat("x", 1<<16) + `"}, ` + aModel + `}`,
		"a chain of Prepend":      `{"normalizer": ` + chain("normalizers", `{"type": "Prepend", "prepend": "`+strings.Repeat("x", 1<<16)+`"}`, 400) + `, ` + aModel + `}`,
		"a Prepend at each place": `{"normalizer": {"type": "Prepend", "prepend": "` + strings.Repeat("x", 1<<16) + `"}, "added_tokens": [{"content": " "}], ` + aModel + `}`,
		"a chain of ByteLevel":    `{"pre_tokenizer": ` + chain("pretokenizers", `{"type": "ByteLevel", "add_prefix_space": false, "use_regex": false}`, 30) + `, ` + aModel + `}`,
	} {
		k := parsedText(t, file)
		if _, err := k.Encode(strings.Repeat("a ", 512)+"\u00e9", 8192); !errors.Is(err, ErrTooMuch) {
			t.Errorf("%s: %v, want ErrTooMuch", name, err)
		}
		if _, err := k.Encode("", 0); err != nil {
			t.Errorf("%s, no text: %v", name, err)
		}
	}
}

// TestPrecompiledDoesNotGrowWithoutBound: a charsmap that puts much in the place of each character is stopped as well.
func TestPrecompiledDoesNotGrowWithoutBound(t *testing.T) {
	t.Parallel()
	// A trie with the one key "a": its root's children begin at 1, so a is at 1^0x61, and what is behind it at 1^0x61^1.
	units := make([]uint32, 0x80)
	units[0] = 1 << 10
	units[1^'a'] = 'a' | 1<<8 | 1<<10
	m := &charsMap{units: units, texts: strings.Repeat("x", 1<<16)}
	if text, ok := m.of("a"); !ok || len(text) != 1<<16 {
		t.Fatalf("%t, %d bytes", ok, len(text))
	}
	for _, text := range []string{strings.Repeat("a", 1<<10), "a" + strings.Repeat("\u0301", 1<<10) + strings.Repeat("a\u0301\u0301\u0301", 1<<10)} {
		if _, err := m.normalized(piece{text: text}, boundsOf(text)); !errors.Is(err, ErrTooMuch) {
			t.Errorf("%.10q…: %v, want ErrTooMuch", text, err)
		}
	}
}

// TestWhatGrowsMost: the most that known steps make of a text is well within the bounds.
func TestWhatGrowsMost(t *testing.T) {
	t.Parallel()
	k := parsedText(t, `{"normalizer": {"type": "Sequence", "normalizers": [{"type": "NFKC"}, {"type": "ByteLevel"}]}, `+aModel+`}`)
	if _, err := k.Encode(strings.Repeat("\ufdfa", 1<<16), 0); err != nil {
		t.Error(err)
	}
}

// TestAddedTokensTakeLittle: neither blanks that each token would take anew, nor thousands of tokens with the same first letter, take more than a time in proportion to the text.
func TestAddedTokensTakeLittle(t *testing.T) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	var many strings.Builder
	for i := range 6000 {
		many.WriteString(`, {"content": "<unused` + strconv.Itoa(i) + `>"}`)
	}
	k := parsedText(t, `{"added_tokens": [{"content": "\n", "lstrip": true, "rstrip": true}`+many.String()+`], `+aModel+`}`)
	for text, want := range map[string]int{
		strings.Repeat("\n", 1<<20):         1,
		strings.Repeat("<unused", 1<<18):    1,
		strings.Repeat("a\n \n ", 1<<18):    1 << 19,
		strings.Repeat("<unused77>", 1<<17): 1 << 17,
	} {
		began := processorTime(t)
		ids := encoded(t, k, text, 0)
		if took := processorTime(t) - began; len(ids) != want || took.Seconds() > 20 {
			t.Errorf("%.10q…: %d tokens, want %d, in %v", text, len(ids), want, took)
		}
	}
}

// TestLongTokensTakeLittle: a token that is long does not make each place in a text long to look at.
func TestLongTokensTakeLittle(t *testing.T) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	long := strings.Repeat("a", 20000)
	for _, model := range []string{
		`{"type": "Unigram", "unk_id": 0, "vocab": [["u", -9], ["a", -1], ["` + long + `b", -2]]}`,
		`{"type": "WordPiece", "unk_token": "u", "max_input_chars_per_word": 1000000, "vocab": {"u": 0, "a": 1, "##a": 2, "` + long + `b": 3, "##` + long + `b": 4}}`,
	} {
		k := parsedText(t, `{"model": `+model+`}`)
		began := processorTime(t)
		ids := encoded(t, k, strings.Repeat("a", 1<<15), 0)
		if took := processorTime(t) - began; len(ids) != 1<<15 || took.Seconds() > 20 {
			t.Errorf("%.30s: %d tokens in %v", model, len(ids), took)
		}
	}
}

// TestManyProcessors: what stands around a text is bounded, whichever post-processors put it there.
func TestManyProcessors(t *testing.T) {
	t.Parallel()
	const bert = `{"type": "BertProcessing", "sep": ["s", 1], "cls": ["c", 2]},`
	file := `{"post_processor": {"type": "Sequence", "processors": [` + strings.TrimSuffix(strings.Repeat(bert, maxPlaces), ",") + `]}, ` + aModel + `}`
	if _, err := Parse([]byte(file)); err == nil || !strings.Contains(err.Error(), "4096 tokens around a text") {
		t.Errorf("%v", err)
	}
}

// TestScore: the numbers on the right are what Hugging Face's library writes when it has read those on the left.
func TestScore(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]float64{
		"-12.105288192783235": -12.105288192783236, "-1.9652167051300817": -1.9652167051300815, "2.514603913542554506757e-20": 2.5146039135425548e-20, "-95e162": -9.499999999999999e+163,
		"-2954659297548965201434439369": -2.9546592975489655e+27, "-2437150235432354506495.2448594807559200487183066": -2.437150235432354e+21,
		"-4.5": -4.5, "0": 0, "-7": -7, "1E+5": 1e5, "18446744073709551616": 18446744073709551616, "0e999": 0, "1e-99999999999999999999": 0, "-5e-400": 0,
	} {
		if got, err := score(text); err != nil || got != want {
			t.Errorf("%s: got %v, want %v, %v", text, got, want, err)
		}
	}
	for _, text := range []string{"", "1e309", "-1e99999999999999999999"} {
		if got, err := score(text); err == nil {
			t.Errorf("%q: %v", text, got)
		}
	}
	if got, err := score("-0.0"); err != nil || !math.Signbit(got) {
		t.Errorf("-0.0: %v, %v", got, err)
	}
}

// TestLikeliestByTheLastBit: two ways through three blanks are as likely but for the last bit of the scores as that library reads them.
func TestLikeliestByTheLastBit(t *testing.T) {
	t.Parallel()
	k := parsedText(t, `{"model": {"type": "Unigram", "unk_id": 0, "vocab": [["u", -20], ["b", -6.0655764600872475], [" ", -0.11874735719161977], ["  ", -0.1827321376749388]]}}`)
	if ids := encoded(t, k, "b   ", 0); !slices.Equal(ids, []int64{1, 2, 3}) {
		t.Errorf("%v", ids)
	}
}

// TestPaddingLength: what Hugging Face's library fills a text of so many tokens up to.
func TestPaddingLength(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ fixed, multiple, longest, want int }{
		{0, 0, 5, 5}, {0, 8, 5, 8}, {0, 8, 16, 16}, {7, 0, 5, 7}, {7, 0, 9, 9}, {7, 8, 5, 8}, {7, 8, 22, 22}, {7, 0, 0, 7},
	} {
		p := Padding{Fixed: c.fixed, Multiple: c.multiple}
		if got := p.Length(c.longest); got != c.want {
			t.Errorf("%+v: got %d", c, got)
		}
	}
}

// TestNothingIsFoundInNothing: where Strip leaves nothing, Replace finds nothing, even what has no length: so it is in Hugging Face's library.
func TestNothingIsFoundInNothing(t *testing.T) {
	t.Parallel()
	for _, pattern := range []string{`{"String": ""}`, `{"Regex": "$"}`, `{"Regex": "x?"}`} {
		k := parsedText(t, `{"normalizer": {"type": "Sequence", "normalizers": [{"type": "Strip"}, {"type": "Replace", "pattern": `+pattern+`, "content": "a"}]}, `+aModel+`}`)
		if ids := encoded(t, k, "   ", 0); len(ids) != 0 {
			t.Errorf("%s: %v", pattern, ids)
		}
	}
}

// TestLongForms: more than thirty marks go with one letter, and a joiner that the text has stays; the texts on the right are what Hugging Face's library makes of them.
func TestLongForms(t *testing.T) {
	t.Parallel()
	circumflex := func(n int) string { return strings.Repeat("\u0302", n) }
	for _, c := range []struct{ form, text, want string }{
		{"NFC", "a" + circumflex(40) + "\u0323", "\u1ead" + circumflex(39)},
		{"NFD", "\u1ead" + circumflex(40) + "\u0323", "a\u0323\u0323" + circumflex(41)},
		{"NFKC", "\uff41" + circumflex(40) + "\u0323\uac00\u11a8", "\u1ead" + circumflex(39) + "\uac01"},
		{"NFKD", "\uff41\u034f" + circumflex(31) + "\u0323", "a\u034f\u0323" + circumflex(31)},
		{"NFC", circumflex(40) + "\u0323a", "\u0323" + circumflex(40) + "a"},
	} {
		k := parsedText(t, `{"normalizer": {"type": "`+c.form+`"}, `+aModel+`}`)
		if got, err := k.normalized(piece{text: c.text}, boundsOf(c.text)); err != nil || got.text != c.want {
			t.Errorf("%s of %q:\n got %q, %v\nwant %q", c.form, c.text, got.text, err, c.want)
		}
	}
}

// TestBlankBeforeTheTextOnly: Metaspace's blank of the scheme first comes before the text, and not before a part behind an added token where Replace has found nothing.
func TestBlankBeforeTheTextOnly(t *testing.T) {
	t.Parallel()
	k := parsedText(t, `{"normalizer": {"type": "Replace", "pattern": {"Regex": "z*"}, "content": "x"}, "pre_tokenizer": {"type": "Metaspace", "replacement": "_", "prepend_scheme": "first"},
		"added_tokens": [{"content": "a"}], "model": {"type": "WordLevel", "vocab": {"u": 0, "xbx": 1, "_xbx": 2}, "unk_token": "u"}}`)
	if ids := encoded(t, k, "bab", 0); !slices.Equal(ids, []int64{2, 3, 1}) {
		t.Errorf("%v", ids)
	}
}

// TestOnlySecond: one text is cut, whatever the file says of two.
func TestOnlySecond(t *testing.T) {
	t.Parallel()
	k := parsedText(t, `{"truncation": {"max_length": 2, "strategy": "OnlySecond"}, "pre_tokenizer": {"type": "WhitespaceSplit"}, `+aModel+`}`)
	if ids := encoded(t, k, "a b c", k.MaxLength); len(ids) != 2 {
		t.Errorf("%v", ids)
	}
}
