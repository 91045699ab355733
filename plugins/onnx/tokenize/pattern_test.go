package tokenize

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/dlclark/regexp2/v2"
)

// refusedHere are expressions that are refused, although Hugging Face's library takes them.
var refusedHere = []string{} //nolint:gochecknoglobals // a table, never changed

// later is time enough.
func later() time.Time { return time.Now().Add(time.Minute) }

func sectionsOf(find finder, text string, until time.Time) (all []section, err error) {
	err = find(text, until, func(s section) error {
		all = append(all, s)
		return nil
	})
	return all, err
}

func decoded(t *testing.T, path string, into any) {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(text, into); err != nil {
		t.Fatal(err)
	}
}

// comparePieces compares what pre-tokenizers alone make of texts: every behavior of Split, and many regular expressions.
func comparePieces(t *testing.T, dir string) {
	t.Helper()
	var made []struct {
		PreTokenizer json.RawMessage `json:"pre_tokenizer"`
		Cases        []struct {
			Text   string   `json:"text"`
			Pieces []string `json:"pieces"`
		} `json:"cases"`
	}
	decoded(t, filepath.Join(dir, "splits/pieces.json"), &made)
	compared, refused := 0, 0
	for _, m := range made {
		k, err := Parse([]byte(`{"pre_tokenizer": ` + string(m.PreTokenizer) + `, "model": {"type": "WordLevel", "vocab": {"u": 0}, "unk_token": "u"}}`))
		if err != nil {
			refused++
			if !slices.ContainsFunc(refusedHere, func(text string) bool { return strings.Contains(string(m.PreTokenizer), text) }) {
				t.Errorf("%s is refused: %v", m.PreTokenizer, err)
			}
			continue
		}
		failed := 0
		for _, c := range m.Cases {
			pieces, err := k.pieces(piece{text: c.Text}, boundsOf(c.Text))
			if err != nil {
				t.Fatal(err)
			}
			var got []string
			for _, p := range pieces {
				got = append(got, p.text)
			}
			compared++
			if !slices.Equal(got, c.Pieces) {
				if failed++; failed <= 2 {
					t.Errorf("%s, %q:\n got %q\nwant %q", m.PreTokenizer, c.Text, got, c.Pieces)
				}
			}
		}
		if failed > 2 {
			t.Errorf("%s: %d of %d texts", m.PreTokenizer, failed, len(m.Cases))
		}
	}
	if compared < 20000 {
		t.Errorf("%d texts only", compared)
	}
	t.Logf("%d pre-tokenizers, %d of them refused, %d texts", len(made), refused, compared)
}

// compareSets compares which characters the classes of regular expressions stand for. Characters that are newer than this Go's Unicode are left out.
func compareSets(t *testing.T, dir string) {
	t.Helper()
	var made struct {
		Text  string              `json:"text"`
		Found map[string][][2]int `json:"found"`
	}
	decoded(t, filepath.Join(dir, "splits/sets.json"), &made)
	characters := []rune(made.Text)
	for expression, ranges := range made.Found {
		find, err := finderOf(&pattern{Regex: &expression})
		if err != nil {
			t.Errorf("%s is refused: %v", expression, err)
			continue
		}
		sections, err := sectionsOf(find, made.Text, later())
		if err != nil {
			t.Fatal(err)
		}
		want, got := make([]bool, len(characters)), make([]bool, 0, len(characters))
		for _, r := range ranges {
			for i := r[0]; i < r[1]; i++ {
				want[i] = true
			}
		}
		for _, s := range sections {
			for range utf8.RuneCountInString(made.Text[s.begin:s.end]) {
				got = append(got, s.found)
			}
		}
		var differ []string
		for i, c := range characters {
			const moved = 0x1171e // to another category
			if got[i] != want[i] && c != moved && !unicode.Is(unicode.Cn, c) {
				differ = append(differ, fmt.Sprintf("%U", c))
			}
		}
		if len(differ) > 0 {
			t.Errorf("%s: %d characters differ, such as %v", expression, len(differ), differ[:min(len(differ), 10)])
		}
	}
}

// compareSingle compares what steps make of each character. Those that are newer than this Go's Unicode are left out where its tables are used.
func compareSingle(t *testing.T, dir string) {
	t.Helper()
	var made struct {
		Text        string `json:"text"`
		Normalizers []struct {
			Step json.RawMessage   `json:"step"`
			Made map[string]string `json:"made"`
		} `json:"normalizers"`
		PreTokenizers []struct {
			Step   json.RawMessage `json:"step"`
			Pieces []string        `json:"pieces"`
		} `json:"pre_tokenizers"`
	}
	decoded(t, filepath.Join(dir, "splits/single.json"), &made)
	const model = `"model": {"type": "WordLevel", "vocab": {"u": 0}, "unk_token": "u"}}`
	for _, n := range made.Normalizers {
		k, err := Parse([]byte(`{"normalizer": ` + string(n.Step) + `, ` + model))
		if err != nil {
			t.Fatal(err)
		}
		failed := 0
		for _, c := range made.Text {
			want, ok := n.Made[string(c)]
			if !ok {
				want = string(c)
			}
			got, err := k.normalized(piece{text: string(c)}, boundsOf(string(c)))
			if err != nil {
				t.Fatal(err)
			}
			if got.text != want && !unicode.Is(unicode.Cn, c) {
				if failed++; failed < 10 {
					t.Errorf("%s, %U: got %q, want %q", n.Step, c, got.text, want)
				}
			}
		}
	}
	for _, p := range made.PreTokenizers {
		k, err := Parse([]byte(`{"pre_tokenizer": ` + string(p.Step) + `, ` + model))
		if err != nil {
			t.Fatal(err)
		}
		pieces, err := k.pieces(piece{text: made.Text}, boundsOf(made.Text))
		if err != nil || len(pieces) != len(p.Pieces) {
			t.Errorf("%s: %d pieces, want %d, %v", p.Step, len(pieces), len(p.Pieces), err)
			continue
		}
		for i := range pieces {
			if pieces[i].text != p.Pieces[i] {
				t.Errorf("%s: got %.20q, want %.20q", p.Step, pieces[i].text, p.Pieces[i])
				break
			}
		}
	}
	if len(made.Normalizers) != 13 || len(made.PreTokenizers) != 3 {
		t.Errorf("%d and %d steps", len(made.Normalizers), len(made.PreTokenizers))
	}
}

func TestRefusedPatterns(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		`(`: "without its )", `)`: "without its (", `[`: "without its ]", `[]a]`: `write \]`, `a**`: "second quantifier", `a{2}?`: "each engine", `*a`: "nothing before it",
		`(?=a)*`: "no", `(?<n>a)(?<1>b)`: "groups", `(?x) a`: "groups", `a(?i)b`: "groups", `(a)\1`: `\1`, `\X`: `\X`, `\p{Word}`: "Word", `\`: "end", `\x`: "number", `\xff`: "number",
		`\x{110000}`: "number", `\x{d800}`: "number", `\u12`: "number", `\p{Klingon}`: "Klingon", `\p{C}`: "category", `\pL`: "braces", `\p{L`: "braces",
		`[[:alpha:]`: "without its ]", `[[:other:]]`: "other", `[[:alpha]`: ":]", `[b-a]`: "range", `[a-\d]`: "range", `[a-[b]]`: "range", `[a&&b&&c]`: "second &&", `[&&a]`: "side", `[\W]`: `\W`,
		`(?i:ß)`: "ASCII", `(?i:ss)`: "both", `(?i:aFi)`: "both", `(?i:s)(?i:t)`: "", `(?i:[\p{L}])`: "capitals", `(?i:[a-é])`: "ASCII", `(?i:[\s])`: "set",
		strings.Repeat("(", 200) + strings.Repeat(")", 200): "within", strings.Repeat("a", maxPattern+1): "characters", `(?~ab)`: "groups", `a{1000}`: "",
	} {
		_, err := finderOf(&pattern{Regex: &text})
		if want == "" && err != nil || want != "" && (err == nil || !strings.Contains(err.Error(), want)) {
			t.Errorf("%.40s: %v, want %q", text, err, want)
		}
	}
}

// TestPatternsEnd: no text makes a regular expression run on and on.
func TestPatternsEnd(t *testing.T) {
	t.Parallel()
	t.Cleanup(regexp2.StopTimeoutClock)
	evil := `(?:a|aa)+b`
	find, err := finderOf(&pattern{Regex: &evil})
	if err != nil {
		t.Fatal(err)
	}
	began := time.Now()
	if _, err := sectionsOf(find, strings.Repeat("a", 100)+"!b", began.Add(textLimit)); !errors.Is(err, ErrTooLong) {
		t.Errorf("%v, want ErrTooLong", err)
	}
	if took := time.Since(began); took > time.Minute {
		t.Errorf("it took %v", took)
	}
	if sections, err := sectionsOf(find, "aaa", later()); err != nil || len(sections) != 1 {
		t.Errorf("a short text afterwards: %v, %v", sections, err)
	}
	letter := "a"
	find, err = finderOf(&pattern{Regex: &letter})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := sectionsOf(find, "aaaa", time.Now().Add(-time.Second)); !errors.Is(err, ErrTooLong) {
		t.Errorf("past the time of the whole text: %v, want ErrTooLong", err)
	}
}

// FuzzPattern: whatever is translated compiles or is refused, and its sections are the whole text in order.
func FuzzPattern(f *testing.F) {
	for _, text := range []string{
		`'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]++[\r\n]*|\s*[\r\n]|\s+(?!\S)|\s+`, `[\p{Han}&&[^a-z]]+|x*`, `(?i)a{,2}|[^[a-c]x]\b`, `^a|b$|\R`,
	} {
		f.Add(text, "It's 12\r\n  a\u4f60xx")
	}
	f.Fuzz(func(t *testing.T, expression, text string) {
		find, err := finderOf(&pattern{Regex: &expression})
		if err != nil {
			return
		}
		text = strings.ToValidUTF8(text, "\ufffd")
		sections, err := sectionsOf(find, text, time.Now().Add(textLimit))
		if err != nil {
			if !errors.Is(err, ErrTooLong) {
				t.Error(err)
			}
			return
		}
		done := 0
		for _, s := range sections {
			if s.begin != done || s.end < s.begin {
				t.Fatalf("%q in %q: %v", expression, text, sections)
			}
			done = s.end
		}
		if done != len(text) {
			t.Fatalf("%q in %q: %v", expression, text, sections)
		}
	})
}
