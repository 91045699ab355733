package httpapi

import (
	"errors"
	"fmt"
	"math"
	"strconv"
	"strings"
	"unicode/utf16"
	"unicode/utf8"

	"github.com/flambeau-serve/flambeau/internal/fault"
)

// gsonKind is the kind of a JSON value, by the name that TorchServe's reader has for it.
type gsonKind string

const (
	gsonObject  gsonKind = "BEGIN_OBJECT"
	gsonArray   gsonKind = "BEGIN_ARRAY"
	gsonString  gsonKind = "STRING"
	gsonNumber  gsonKind = "NUMBER"
	gsonBoolean gsonKind = "BOOLEAN"
	gsonNull    gsonKind = "NULL"
)

// gsonValue is a value of one of the kinds; of objects and arrays nothing but the kind is kept.
type gsonValue struct {
	kind gsonKind
	text string // of a string, number or boolean
	at   string // where its kind was known, for messages
	end  string // where it ended, for messages about what it holds
}

// gsonReader reads JSON as leniently as TorchServe's reader does (unquoted and single-quoted strings, comments, ; for , and = for :),
// and complains in its words: clients have seen them. It reads what registration bodies are: one object.
type gsonReader struct {
	s     string
	pos   int
	line  int // 0 for the first
	start int // of the line
	path  string
}

const (
	gsonLiteralEnd = "/\\;#={}[]:, \t\f\r\n"
	gsonMaxDepth   = 100
	gsonState      = "java.lang.IllegalStateException"
	gsonMalformed  = "com.google.gson.stream.MalformedJsonException"
	gsonEOF        = "java.io.EOFException"
	gsonNotNumber  = "java.lang.NumberFormatException"
)

// errGsonNull is what an empty text or a null is read as: no object at all.
var errGsonNull = errors.New("no object")

// gsonObjectOf reads an object and hands over its members in their order.
func gsonObjectOf(text []byte, member func(name string, v gsonValue) error) error {
	r := &gsonReader{s: strings.TrimPrefix(string(text), "\ufeff"), path: "$"}
	if r.skip(); r.pos == len(r.s) {
		return errGsonNull
	}
	first, err := r.peek()
	switch {
	case err != nil:
		return err
	case first.kind == gsonNull:
		return errGsonNull
	case first.kind != gsonObject:
		return r.wrong(gsonState, "Expected BEGIN_OBJECT but was "+string(first.kind), first.at)
	}
	err = r.object(func(name string) error {
		v, err := r.value(1)
		if err != nil {
			return err
		}
		return member(name, v)
	})
	if err != nil {
		return err
	}
	if r.skip(); r.pos < len(r.s) {
		r.pos++
		return r.wrong(gsonMalformed, "Use JsonReader.setLenient(true) to accept malformed JSON", r.where())
	}
	return nil
}

// object reads members up to the closing brace; the opening one has been read.
func (r *gsonReader) object(member func(name string) error) error {
	outer := r.path
	r.path = outer + "."
	for first := true; ; first = false {
		c, err := r.next()
		if err != nil {
			return err
		}
		switch {
		case c == '}' && first:
			r.path = outer
			return nil
		case first:
		case c == '}':
			r.path = outer
			return nil
		case c == ',' || c == ';':
			if c, err = r.next(); err != nil {
				return err
			}
		default:
			return r.wrong(gsonMalformed, "Unterminated object", r.where())
		}
		name, err := r.name(c)
		if err != nil {
			return err
		}
		r.path = outer + "." + name
		if err = r.colon(); err != nil {
			return err
		}
		if err = member(name); err != nil {
			return err
		}
	}
}

// name reads a member's name, of which c is the first character.
func (r *gsonReader) name(c byte) (string, error) {
	if c == '"' || c == '\'' {
		return r.quoted(c)
	}
	r.pos--
	name := r.unquoted()
	if name == "" {
		r.pos++
		return "", r.wrong(gsonMalformed, "Expected name", r.where())
	}
	return name, nil
}

func (r *gsonReader) colon() error {
	c, err := r.next()
	switch {
	case err != nil:
		return err
	case c == '=':
		if r.pos < len(r.s) && r.s[r.pos] == '>' {
			r.pos++
		}
	case c != ':':
		return r.wrong(gsonMalformed, "Expected ':'", r.where())
	}
	return nil
}

// value reads a whole value.
func (r *gsonReader) value(depth int) (gsonValue, error) {
	v, err := r.peek()
	if err != nil {
		return v, err
	}
	if depth > gsonMaxDepth {
		return v, r.wrong(gsonMalformed, "Nesting is too deep", r.where())
	}
	switch v.kind {
	case gsonObject:
		path := r.path
		err = r.object(func(string) error {
			_, err := r.value(depth + 1)
			return err
		})
		r.path = path
	case gsonArray:
		err = r.array(depth)
	case gsonString, gsonNumber, gsonBoolean, gsonNull:
	}
	return v, err
}

func (r *gsonReader) array(depth int) error {
	for first := true; ; first = false {
		c, err := r.next()
		switch {
		case err != nil:
			return err
		case c == ']':
			return nil
		case first:
			r.pos--
		case c != ',' && c != ';':
			return r.wrong(gsonMalformed, "Unterminated array", r.where())
		}
		if _, err = r.value(depth + 1); err != nil {
			return err
		}
	}
}

// peek reads a scalar, or the first character of anything else.
func (r *gsonReader) peek() (gsonValue, error) {
	c, err := r.next()
	if err != nil {
		return gsonValue{}, err
	}
	switch c {
	case '{':
		return gsonValue{kind: gsonObject, at: r.where()}, nil
	case '[':
		return gsonValue{kind: gsonArray, at: r.where()}, nil
	case '"', '\'':
		at := r.where()
		text, err := r.quoted(c)
		return gsonValue{kind: gsonString, text: text, at: at, end: r.where()}, err
	}
	r.pos--
	at := r.where()
	text := r.unquoted()
	if text == "" {
		r.pos++
		return gsonValue{}, r.wrong(gsonMalformed, "Expected value", r.where())
	}
	v := gsonValue{kind: gsonString, text: text, at: at, end: r.where()}
	switch strings.ToLower(text) {
	case "null":
		v.kind = gsonNull
	case "true", "false":
		v.kind, v.at = gsonBoolean, v.end
	default:
		if gsonIsNumber(text) {
			v.kind, v.at = gsonNumber, v.end
		}
	}
	return v, nil
}

// gsonIsNumber says whether text is a number by JSON's own grammar; other numbers are strings until an int is wanted.
func gsonIsNumber(text string) bool {
	digits := strings.TrimPrefix(text, "-")
	if digits == "" || !isDigit(digits[0]) || len(digits) > 1 && digits[0] == '0' && isDigit(digits[1]) {
		return false
	}
	last := digits[len(digits)-1]
	_, err := strconv.ParseFloat(digits, 64)
	return isDigit(last) && !strings.ContainsAny(digits, "xX_pP") && (err == nil || errors.Is(err, strconv.ErrRange))
}

func isDigit(c byte) bool { return c >= '0' && c <= '9' }

func (r *gsonReader) unquoted() string {
	from := r.pos
	if n := strings.IndexAny(r.s[from:], gsonLiteralEnd); n >= 0 {
		r.pos = from + n
	} else {
		r.pos = len(r.s)
	}
	return r.s[from:r.pos]
}

// quoted reads a string whose opening quote has been read.
func (r *gsonReader) quoted(quote byte) (string, error) {
	var b strings.Builder
	for r.pos < len(r.s) {
		c := r.s[r.pos]
		r.pos++
		switch c {
		case quote:
			return b.String(), nil
		case '\\':
			if err := r.escape(&b); err != nil {
				return "", err
			}
		case '\n':
			r.newLine()
			b.WriteByte(c)
		default:
			b.WriteByte(c)
		}
	}
	return "", r.wrong(gsonMalformed, "Unterminated string", r.where())
}

// escape reads what follows a backslash.
func (r *gsonReader) escape(b *strings.Builder) error {
	if r.pos == len(r.s) {
		return r.wrong(gsonMalformed, "Unterminated escape sequence", r.where())
	}
	c := r.s[r.pos]
	r.pos++
	switch c {
	case 'u':
		unit, ok := r.hex4()
		if !ok {
			return r.wrong(gsonMalformed, "Unterminated escape sequence", r.where())
		}
		if strings.HasPrefix(r.s[r.pos:], `\u`) && utf16.IsSurrogate(unit) {
			was := r.pos
			r.pos += 2
			low, ok := r.hex4()
			if pair := utf16.DecodeRune(unit, low); ok && pair != utf8.RuneError {
				b.WriteRune(pair)
				return nil
			}
			r.pos = was
		}
		b.WriteRune(unit)
	case 't', 'b', 'n', 'r', 'f':
		b.WriteByte("\t\b\n\r\f"[strings.IndexByte("tbnrf", c)])
	case '\n':
		r.newLine()
		b.WriteByte(c)
	case '\'', '"', '\\', '/':
		b.WriteByte(c)
	default:
		return r.wrong(gsonMalformed, "Invalid escape sequence", r.where())
	}
	return nil
}

func (r *gsonReader) hex4() (rune, bool) {
	if len(r.s)-r.pos < 4 {
		return 0, false
	}
	n, err := strconv.ParseUint(r.s[r.pos:r.pos+4], 16, 16)
	r.pos += 4
	return rune(n), err == nil
}

// next reads the next character that is neither blank nor comment.
func (r *gsonReader) next() (byte, error) {
	if r.skip(); r.pos == len(r.s) {
		return 0, r.wrong(gsonEOF, "End of input", r.where())
	}
	r.pos++
	return r.s[r.pos-1], nil
}

// skip skips blanks and comments.
func (r *gsonReader) skip() {
	for r.pos < len(r.s) {
		switch c := r.s[r.pos]; {
		case c == '\n':
			r.pos++
			r.newLine()
		case c == ' ' || c == '\t' || c == '\r':
			r.pos++
		case c == '#' || strings.HasPrefix(r.s[r.pos:], "//"):
			r.pos += len(r.s[r.pos:]) - len(strings.TrimLeft(r.s[r.pos:], "#/"))
			if n := strings.IndexAny(r.s[r.pos:], "\r\n"); n >= 0 {
				r.pos += n
			} else {
				r.pos = len(r.s)
			}
		case strings.HasPrefix(r.s[r.pos:], "/*") && strings.Contains(r.s[r.pos+2:], "*/"):
			r.pos += 2 + strings.Index(r.s[r.pos+2:], "*/") + 2
		default:
			return
		}
	}
}

func (r *gsonReader) newLine() {
	r.line++
	r.start = r.pos
}

func (r *gsonReader) where() string {
	return fmt.Sprintf(" at line %d column %d path %s", r.line+1, utf8.RuneCountInString(r.s[r.start:r.pos])+1, r.path)
}

func (r *gsonReader) wrong(exception, what, where string) error {
	return fault.New(fault.BadJSON, exception+": "+what+where, nil)
}

// asString gives the text of a string member, nil if it is null.
func (v gsonValue) asString() (*string, error) {
	switch v.kind {
	case gsonNull:
		return nil, nil //nolint:nilnil // null is no value and no error
	case gsonObject, gsonArray:
		return nil, fault.New(fault.BadJSON, gsonState+": Expected a string but was "+string(v.kind)+v.at, nil)
	case gsonString, gsonNumber, gsonBoolean:
	}
	return &v.text, nil
}

// asInt gives the number of an int member, nil if it is null. Strings that hold a number count.
func (v gsonValue) asInt() (*int, error) {
	switch v.kind {
	case gsonNull:
		return nil, nil //nolint:nilnil // null is no value and no error
	case gsonObject, gsonArray, gsonBoolean:
		return nil, fault.New(fault.BadJSON, gsonState+": Expected an int but was "+string(v.kind)+v.at, nil)
	case gsonString, gsonNumber:
	}
	if n, err := strconv.ParseInt(v.text, 10, 32); err == nil {
		i := int(n)
		return &i, nil
	}
	text := strings.TrimSpace(v.text)
	if text == "" {
		return nil, fault.New(fault.BadJSON, gsonNotNumber+": empty String", nil)
	}
	f, err := strconv.ParseFloat(text, 64)
	if err != nil && !errors.Is(err, strconv.ErrRange) {
		return nil, fault.Newf(fault.BadJSON, "%s: For input string: \"%s\"", gsonNotNumber, v.text)
	}
	if f != math.Trunc(f) || math.Abs(f) > math.MaxInt32 {
		return nil, fault.New(fault.BadJSON, gsonNotNumber+": Expected an int but was "+v.text+v.end, nil)
	}
	i := int(f)
	return &i, nil
}

// asBool gives the truth of a boolean member, nil if it is null. A string counts: "true", in any case, is true.
func (v gsonValue) asBool() (*bool, error) {
	switch v.kind {
	case gsonNull:
		return nil, nil //nolint:nilnil // null is no value and no error
	case gsonObject, gsonArray, gsonNumber:
		return nil, fault.New(fault.BadJSON, gsonState+": Expected a boolean but was "+string(v.kind)+v.at, nil)
	case gsonString, gsonBoolean:
	}
	yes := strings.EqualFold(v.text, "true")
	return &yes, nil
}
