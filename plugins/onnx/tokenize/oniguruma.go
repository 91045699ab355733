package tokenize

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"unicode"
)

// oniguruma rewrites a regular expression as Hugging Face's library reads it (it uses Oniguruma) for the engine here, which reads what .NET does. Where the two differ,
// and nobody has needed it so far, it refuses: another split would give other tokens.
type oniguruma struct {
	in    []rune
	at    int
	out   []byte
	fold  bool // capitals and small letters are the same
	run   rune // the last letter written, when fold and the next one stands right behind it; else 0
	depth int
}

// maxPattern bounds a pattern, maxDepth its groups within groups.
const (
	maxPattern = 1 << 14
	maxDepth   = 100
)

func translated(pattern string) (string, error) {
	o := &oniguruma{in: []rune(pattern)}
	if len(o.in) > maxPattern {
		return "", fmt.Errorf("it has %d characters, and %d are read", len(o.in), maxPattern)
	}
	o.fold = o.skips("(?i)") // within the pattern its reach differs from one engine to another
	if err := o.alternatives(); err != nil {
		return "", fmt.Errorf("at character %d: %w", o.at+1, err)
	}
	if o.at < len(o.in) {
		return "", fmt.Errorf("at character %d: a ) without its (", o.at+1)
	}
	return string(o.out), nil
}

func (o *oniguruma) write(text string) { o.out = append(o.out, text...) }

// peek gives the next character, 0 at the end.
func (o *oniguruma) peek() rune {
	if o.at < len(o.in) {
		return o.in[o.at]
	}
	return 0
}

func (o *oniguruma) skips(text string) bool {
	n := len(text) // ASCII only
	if o.at+n > len(o.in) || string(o.in[o.at:o.at+n]) != text {
		return false
	}
	o.at += n
	return true
}

// alternatives reads up to the end, or to the ) of the group.
func (o *oniguruma) alternatives() error {
	if o.depth++; o.depth > maxDepth {
		return fmt.Errorf("more than %d groups within each other", maxDepth)
	}
	defer func() { o.depth-- }()
	for o.at < len(o.in) && o.peek() != ')' {
		if o.skips("|") {
			o.write("|")
			o.run = 0
			continue
		}
		start := len(o.out)
		around, err := o.atom()
		if err != nil {
			return err
		}
		if err := o.quantifier(start, around); err != nil {
			return err
		}
	}
	o.run = 0
	return nil
}

// atom reads what a quantifier may stand behind, and says whether it is one that has no length, where none may.
func (o *oniguruma) atom() (around bool, err error) {
	c := o.in[o.at]
	o.at++
	if strings.ContainsRune("([.^$", c) {
		o.run = 0
	}
	switch c {
	case '(':
		return o.group()
	case '[':
		text, err := o.class()
		o.write(text)
		return false, err
	case '.':
		o.write(`[^\n]`)
	case '^': // of each line, but not behind the last line's end
		o.write(`(?:(?<![\s\S])|(?<=\n)(?=[\s\S]))`)
		return true, nil
	case '$': // of each line
		o.write(`(?![^\n])`)
		return true, nil
	case '*', '+', '?':
		return false, fmt.Errorf("a %c with nothing before it", c)
	case '\\':
		return o.escape()
	default:
		return false, o.literal(c)
	}
	return false, nil
}

// group reads a group; its ( has been read. Groups need no numbers here.
func (o *oniguruma) group() (around bool, err error) {
	fold := o.fold
	switch {
	case o.peek() != '?', o.skips("?:"):
		o.write("(?:")
	case o.skips("?i:"):
		o.fold = true
		o.write("(?:")
	case o.skips("?-i:"):
		o.fold = false
		o.write("(?:")
	case o.skips("?>"):
		o.write("(?>")
	default:
		for _, kind := range []string{"?=", "?!", "?<=", "?<!"} {
			if o.skips(kind) {
				o.write("(" + kind)
				around = true
				break
			}
		}
		if !around && !o.named() {
			return false, errors.New("of groups (…), (?:…), (?i:…), (?-i:…), (?>…), (?=…), (?!…), (?<=…), (?<!…) and (?<name>…) are known here")
		}
	}
	if err := o.alternatives(); err != nil {
		return false, err
	}
	if !o.skips(")") {
		return false, errors.New("a ( without its )")
	}
	o.write(")")
	o.fold = fold
	return around, nil
}

// named reads ?<name> of a group. Nobody asks for it by its name.
func (o *oniguruma) named() bool {
	length := slices.Index(o.in[o.at:], '>')
	if !strings.HasPrefix(string(o.in[o.at:min(o.at+2, len(o.in))]), "?<") || length < 3 {
		return false
	}
	for _, c := range o.in[o.at+2 : o.at+length] {
		if c != '_' && (c > unicode.MaxASCII || !unicode.IsLetter(c)) {
			return false
		}
	}
	o.at += length + 1
	o.write("(?:")
	return true
}

// quantifier reads how often an atom, which was written at start, may come.
func (o *oniguruma) quantifier(start int, around bool) error {
	text, exact, ok := o.times()
	if !ok {
		return nil
	}
	o.run = 0
	if around {
		return errors.New("nothing has a length that could be repeated")
	}
	atom := string(o.out[start:])
	o.out = append(o.out[:start], "(?:"+atom+")"+text...)
	interval := strings.HasPrefix(text, "{")
	switch {
	case o.peek() == '?' && exact:
		return errors.New("{n}? means something else in each engine")
	case o.skips("?"):
		o.write("?")
	case o.peek() == '+' && interval: // it repeats the repetition there
		o.at++
		o.out = append(o.out[:start], "(?:"+string(o.out[start:])+")+"...)
	case o.skips("+"):
		o.out = append(o.out[:start], "(?>"+string(o.out[start:])+")"...)
	}
	if c := o.peek(); c == '*' || c == '+' || c == '?' {
		return fmt.Errorf("a second quantifier, %c", c)
	}
	return nil
}

// times reads *, +, ? or {n,m}, and says whether it is exactly {n}. A { that begins no such thing is a letter.
func (o *oniguruma) times() (text string, exact, ok bool) {
	c := o.peek()
	if c == '*' || c == '+' || c == '?' {
		o.at++
		return string(c), false, true
	}
	if c != '{' {
		return "", false, false
	}
	length := slices.Index(o.in[o.at:], '}')
	if length < 0 {
		return "", false, false
	}
	low, high, comma := strings.Cut(string(o.in[o.at+1:o.at+length]), ",")
	if low == "" && high == "" || !digits(low) || !digits(high) {
		return "", false, false
	}
	if low == "" {
		low = "0"
	}
	o.at += length + 1
	if !comma {
		return "{" + low + "}", true, true
	}
	return "{" + low + "," + high + "}", false, true
}

// digits says whether a text has at most three digits and nothing else.
func digits(text string) bool {
	const most = 3
	return len(text) <= most && strings.Trim(text, "0123456789") == ""
}

// folds are pairs of letters that one character stands for, as ß for ss, when capitals do not count.
var folds = []string{"ss", "ff", "fi", "fl", "st"} //nolint:gochecknoglobals // a table, never changed

// literal writes a character that stands for itself.
func (o *oniguruma) literal(c rune) error {
	if !o.fold {
		o.write(quoted(c))
		return nil
	}
	if c > unicode.MaxASCII {
		return fmt.Errorf("%q where capitals do not count: only letters of ASCII are known here", c)
	}
	small := unicode.ToLower(c)
	if o.run != 0 && slices.Contains(folds, string([]rune{o.run, small})) {
		return fmt.Errorf("%c%c where capitals do not count: one character may stand for both", o.run, small)
	}
	o.run = small
	o.write("[")
	for _, other := range orbit(c) {
		o.write(quoted(other))
	}
	o.write("]")
	return nil
}

// orbit gives a character and those that differ from it by being a capital or not.
func orbit(c rune) []rune {
	all := []rune{c}
	for r := unicode.SimpleFold(c); r != c; r = unicode.SimpleFold(r) {
		all = append(all, r)
	}
	return all
}

// quoted writes a character so that it stands for itself, also in a class.
func quoted(c rune) string {
	if c >= 0x80 || c >= '0' && c <= '9' || c >= 'A' && c <= 'Z' || c >= 'a' && c <= 'z' {
		return string(c)
	}
	return fmt.Sprintf(`\x%02x`, c)
}

// words are the characters of \w within a class. Outside of one there are a few more: so it is there.
const (
	wordSet = `\p{L}\p{M}\p{Nd}\p{Nl}\p{Pc}\p{Other_Alphabetic}`
	word    = "[" + wordSet + `\xb2\xb3\xb9\xbc-\xbe]`
	noWord  = "[^" + wordSet + `\xb2\xb3\xb9\xbc-\xbe]`
)

// set is what stands in the brackets of a class, or all but that.
type set struct {
	members string
	negated bool
}

// sets are the classes that a letter behind a backslash stands for.
var sets = map[rune]set{ //nolint:gochecknoglobals // a table, never changed
	's': {`\s`, false}, 'S': {`\s`, true}, 'd': {`\p{Nd}`, false}, 'D': {`\p{Nd}`, true}, 'w': {wordSet, false}, 'h': {hexDigits, false}, 'H': {hexDigits, true},
}

const (
	hexDigits  = "0-9A-Fa-f"
	alphabetic = `\p{L}\p{Nl}\p{Other_Alphabetic}` + "\u0363-\u036f\u1dd3-\u1de6" // the last ones since Unicode 16
)

// posixSets are those that have a name: [:name:], and but for punct and word \p{name} as well.
var posixSets = map[string]string{ //nolint:gochecknoglobals // a table, never changed
	"alnum": alphabetic + `\p{Nd}`, "alpha": alphabetic, "ascii": `\x00-\x7f`, "blank": `\p{Zs}\t`, "cntrl": `\p{Cc}`, "digit": `\p{Nd}`,
	"lower": `\p{Ll}\p{Other_Lowercase}`, "upper": `\p{Lu}\p{Other_Uppercase}`, "punct": `\p{P}\p{S}`, "space": `\s`, "xdigit": hexDigits, "word": wordSet,
}

// controls are the characters that a letter behind a backslash stands for.
var controls = map[rune]rune{'t': '\t', 'n': '\n', 'r': '\r', 'f': '\f', 'v': '\v', 'a': '\a', 'e': '\x1b'} //nolint:gochecknoglobals // a table, never changed

// escape reads what stands behind a backslash outside of a class.
func (o *oniguruma) escape() (around bool, err error) {
	c := o.peek()
	switch c {
	case 'b', 'B', 'A', 'z', 'Z':
		o.at++
		o.run = 0
		o.write(map[rune]string{
			'b': `(?:(?<=` + word + `)(?!` + word + `)|(?<!` + word + `)(?=` + word + `))`,
			'B': `(?:(?<=` + word + `)(?=` + word + `)|(?<!` + word + `)(?!` + word + `))`,
			'A': `(?<![\s\S])`, 'z': `(?![\s\S])`, 'Z': `(?=\n?(?![\s\S]))`,
		}[c])
		return true, nil
	case 'w', 'W', 'R':
		o.at++
		o.run = 0
		o.write(map[rune]string{'w': word, 'W': noWord, 'R': `(?>\r\n|[\n\x0b\f\r\x85` + "\u2028\u2029])"}[c])
		return false, nil
	}
	found, one, err := o.escaped()
	switch {
	case err != nil:
		return false, err
	case found.members == "":
		return false, o.literal(one)
	}
	o.run = 0
	if found.negated {
		o.write("[^" + found.members + "]")
	} else {
		o.write("[" + found.members + "]")
	}
	return false, nil
}

// escaped reads what stands behind a backslash inside and outside of classes alike: a set of characters, or one of them.
func (o *oniguruma) escaped() (found set, one rune, err error) {
	if o.at >= len(o.in) {
		return set{}, 0, errors.New("a backslash at the end")
	}
	c := o.in[o.at]
	o.at++
	if found, ok := sets[c]; ok {
		return found, 0, nil
	}
	if r, ok := controls[c]; ok {
		return set{}, r, nil
	}
	switch {
	case c == 'p' || c == 'P':
		found, err = o.property(c == 'P')
		return found, 0, err
	case c == 'x' || c == 'u':
		one, err = o.hex(c)
		return set{}, one, err
	case c > unicode.MaxASCII || unicode.IsLetter(c) || unicode.IsDigit(c):
		return set{}, 0, fmt.Errorf(`\%c is not known here`, c)
	}
	return set{}, c, nil
}

// hex reads the number of a character: \xHH, \x{H…} or \uHHHH.
func (o *oniguruma) hex(kind rune) (rune, error) {
	length := 2
	if kind == 'u' {
		length = 4
	}
	braced := kind == 'x' && o.skips("{")
	if braced {
		length = slices.Index(o.in[o.at:], '}')
	}
	if length < 1 || o.at+length > len(o.in) {
		return 0, fmt.Errorf(`\%c without its number`, kind)
	}
	n, err := strconv.ParseUint(string(o.in[o.at:o.at+length]), 16, 32)
	if err != nil || n > unicode.MaxRune || n >= 0xd800 && n < 0xe000 || kind == 'x' && !braced && n > unicode.MaxASCII {
		return 0, fmt.Errorf(`\%c with a number that is no character's`, kind)
	}
	o.at += length
	if braced {
		o.at++
	}
	return rune(n), nil
}

// property reads {Name} behind \p or \P: a category, a script, or a set with a name.
func (o *oniguruma) property(negated bool) (set, error) {
	const unknown = `\p wants the name of a category (L, Lu, …), of a script (Han, …) or of a set (Alpha, …) in braces`
	length := slices.Index(o.in[o.at:], '}')
	if length < 1 || o.in[o.at] != '{' {
		return set{}, errors.New(unknown)
	}
	name, not := strings.CutPrefix(string(o.in[o.at+1:o.at+length]), "^")
	o.at += length + 1
	if o.fold {
		return set{}, errors.New(`\p where capitals do not count`)
	}
	if members, ok := property(name); ok {
		return set{members, negated != not}, nil
	}
	return set{}, fmt.Errorf("%s, and not %q", unknown, name)
}

// property finds a property: capitals, blanks, hyphens and low lines do not count.
func property(name string) (members string, ok bool) {
	key := func(s string) string {
		return strings.NewReplacer(" ", "", "_", "", "-", "").Replace(strings.ToLower(s))
	}
	wanted := key(name)
	if members, ok := posixSets[wanted]; ok && wanted != "punct" && wanted != "word" {
		return members, true
	}
	if short, ok := categories[wanted]; ok {
		return `\p{` + short + "}", true
	}
	for category := range unicode.Categories {
		if key(category) == wanted && len(category) <= 2 && category != "C" && category != "Cn" && category != "LC" {
			return `\p{` + category + "}", true
		}
	}
	for script := range unicode.Scripts {
		if key(script) == wanted {
			return `\p{` + script + "}", true
		}
	}
	return "", false
}

var categories = map[string]string{ //nolint:gochecknoglobals // a table, never changed
	"letter": "L", "uppercaseletter": "Lu", "lowercaseletter": "Ll", "titlecaseletter": "Lt", "modifierletter": "Lm", "otherletter": "Lo",
	"mark": "M", "nonspacingmark": "Mn", "spacingmark": "Mc", "enclosingmark": "Me",
	"number": "N", "decimalnumber": "Nd", "letternumber": "Nl", "othernumber": "No",
	"punctuation": "P", "punct": "P", "symbol": "S", "separator": "Z", "cc": "Cc", "cf": "Cf", "control": "Cc", "format": "Cf",
}
