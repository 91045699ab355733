// Package argparse reads command lines by the rules of Python's argparse, which the torchserve command has: options anywhere, unambiguous
// prefixes of long ones, lists of values, groups of options that exclude each other.
package argparse

import (
	"cmp"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"
)

// Kind says what follows an option.
type Kind int

// The kinds.
const (
	Flag  Kind = iota // nothing
	Value             // one value; a later one replaces an earlier one
	List              // one value or more, up to the next option
	Each              // one value; it may be given again, and all of them count
)

// Option is one option. Names begin with dashes; the first long one is the option's name in Args.
type Option struct {
	Names   []string
	Kind    Kind
	Metavar string // for the value; "" for the name in capitals
	Help    string
	Hidden  bool
	Group   string // heading in --help, where options of a group stand together; "" for the first one, "options"
}

// Command describes a command line.
type Command struct {
	Prog      string
	About     string // a paragraph or more for --help
	Options   []Option
	Exclusive []string // names of options of which one at most may be given
	// Positional names the arguments without dashes, "" if there may be none. Least and Most say how many there are.
	Positional  string
	Least, Most int
}

// Args is a command line that was read.
type Args struct {
	Rest   []string // without dashes
	values map[string][]string
}

// Has says whether an option was given.
func (a *Args) Has(name string) bool { return a.values[name] != nil }

// Get gives an option's value, "" when it was not given.
func (a *Args) Get(name string) string {
	if v := a.values[name]; len(v) > 0 {
		return v[0]
	}
	return ""
}

// All gives the values of a list.
func (a *Args) All(name string) []string { return a.values[name] }

// ErrHelp means that help was asked for.
var ErrHelp = errors.New("help")

// UsageError is a command line that cannot be understood. Text is what argparse would say.
type UsageError struct{ Text string }

// Error gives the text.
func (e *UsageError) Error() string { return e.Text }

func usage(format string, args ...any) error { return &UsageError{Text: fmt.Sprintf(format, args...)} }

// Parse reads a command line, without the program's name. Its error is ErrHelp or a UsageError.
func (c *Command) Parse(args []string) (*Args, error) {
	p := &parser{command: c, args: args, out: &Args{values: map[string][]string{}}}
	for p.next < len(p.args) {
		if err := p.one(); err != nil {
			return nil, err
		}
	}
	return p.finish()
}

// parser walks over a command line.
type parser struct {
	command  *Command
	args     []string
	next     int
	onlyRest bool // after "--"
	given    []string
	unknown  []string
	out      *Args
}

// one reads the next option with its values, or the next argument without dashes.
func (p *parser) one() error {
	arg := p.args[p.next]
	p.next++
	if arg == "--" && !p.onlyRest {
		p.onlyRest = true
		return nil
	}
	if p.onlyRest || !isOption(arg) {
		p.out.Rest = append(p.out.Rest, arg)
		return nil
	}
	name, value, hasValue := strings.Cut(arg, "=")
	o, err := p.find(name)
	if err != nil {
		return err
	}
	if o == nil {
		if o, value = p.short(arg); o == nil {
			p.unknown = append(p.unknown, arg)
			return nil
		}
		hasValue = value != ""
	}
	return p.take(o, value, hasValue)
}

// isOption says whether an argument can be no value: argparse takes negative numbers, a lone dash and what holds a blank for values.
func isOption(arg string) bool {
	return len(arg) > 1 && arg[0] == '-' && !strings.Contains(arg, " ") && !regexp.MustCompile(`^-\d+$|^-\d*\.\d+$`).MatchString(arg)
}

func help() *Option {
	return &Option{Names: []string{"-h", "--help"}, Help: "show this help message and exit"}
}

func (p *parser) options() []*Option {
	all := []*Option{help()}
	for i := range p.command.Options {
		all = append(all, &p.command.Options[i])
	}
	return all
}

// find gives the option of a name or of an unambiguous prefix, nil if there is none.
func (p *parser) find(name string) (*Option, error) {
	var found *Option
	var matches []string
	for _, o := range p.options() {
		for _, n := range o.Names {
			if n == name {
				return o, nil
			}
			if strings.HasPrefix(name, "--") && strings.HasPrefix(n, name) {
				matches, found = append(matches, n), o
			}
		}
	}
	if len(matches) > 1 {
		return nil, usage("ambiguous option: %s could match %s", name, strings.Join(matches, ", "))
	}
	return found, nil
}

// short reads a value that follows a one-letter option without a blank. Further one-letter flags are put back.
func (p *parser) short(arg string) (o *Option, value string) {
	if strings.HasPrefix(arg, "--") {
		return nil, ""
	}
	for _, o := range p.options() {
		if !slices.Contains(o.Names, arg[:2]) {
			continue
		}
		if o.Kind == Flag {
			p.next--
			p.args = slices.Clone(p.args)
			p.args[p.next] = "-" + arg[2:]
			return o, ""
		}
		return o, arg[2:]
	}
	return nil, ""
}

// take reads an option's values.
func (p *parser) take(o *Option, value string, hasValue bool) error {
	label := strings.Join(o.Names, "/")
	if o.Kind == Flag && hasValue {
		return usage("argument %s: ignored explicit argument '%s'", label, value)
	}
	if slices.Contains(o.Names, "--help") {
		return ErrHelp
	}
	values := []string{}
	switch {
	case o.Kind == Flag:
	case hasValue:
		values = []string{value}
	case o.Kind == Value, o.Kind == Each:
		if values = p.values(1); len(values) == 0 {
			return usage("argument %s: expected one argument", label)
		}
	default:
		if values = p.values(len(p.args)); len(values) == 0 {
			return usage("argument %s: expected at least one argument", label)
		}
	}
	if err := p.exclude(o, label); err != nil {
		return err
	}
	if o.Kind == Each {
		values = append(p.out.values[o.name()], values...)
	}
	p.out.values[o.name()] = values
	return nil
}

// values takes at most n arguments that are no options.
func (p *parser) values(n int) []string {
	var values []string
	for len(values) < n && p.next < len(p.args) && p.args[p.next] != "--" && !isOption(p.args[p.next]) {
		values = append(values, p.args[p.next])
		p.next++
	}
	return values
}

func (p *parser) exclude(o *Option, label string) error {
	if !slices.Contains(p.command.Exclusive, o.name()) {
		return nil
	}
	for _, other := range p.given {
		if other != label {
			return usage("argument %s: not allowed with argument %s", label, other)
		}
	}
	p.given = append(p.given, label)
	return nil
}

func (p *parser) finish() (*Args, error) {
	c := p.command
	rest := p.out.Rest
	if c.Positional == "" || len(rest) > c.Most {
		p.unknown = append(p.unknown, rest[min(len(rest), c.Most):]...)
	}
	switch {
	case len(rest) < c.Least:
		return nil, usage("the following arguments are required: %s", c.Positional)
	case len(p.unknown) > 0:
		return nil, usage("unrecognized arguments: %s", strings.Join(p.unknown, " "))
	}
	return p.out, nil
}

// name is the first long name.
func (o *Option) name() string {
	for _, n := range o.Names {
		if strings.HasPrefix(n, "--") {
			return n
		}
	}
	return o.Names[0]
}

const (
	helpColumn = 24
	width      = 100
)

// Usage gives the usage line, wrapped.
func (c *Command) Usage() string {
	head := "usage: " + c.Prog
	parts := []string{"[-h]"}
	var group []string
	for i := range c.Options {
		o := &c.Options[i]
		text := o.Names[0] + o.operand()
		switch {
		case o.Hidden:
		case slices.Contains(c.Exclusive, o.name()):
			group = append(group, text)
		default:
			parts = append(parts, "["+text+"]")
		}
	}
	if len(group) > 0 {
		parts = slices.Insert(parts, 1, "["+strings.Join(group, " | ")+"]")
	}
	switch {
	case c.Positional == "":
	case c.Least == 0:
		parts = append(parts, "["+c.Positional+"]")
	case c.Most > len(strings.Fields(c.Positional)):
		parts = append(parts, c.Positional, "["+c.Positional+" ...]")
	default:
		parts = append(parts, c.Positional)
	}
	return wrap(head, parts, len(head)+1) + "\n"
}

func (o *Option) operand() string {
	meta := o.Metavar
	if meta == "" {
		meta = strings.ToUpper(strings.ReplaceAll(strings.TrimLeft(o.name(), "-"), "-", "_"))
	}
	switch o.Kind {
	case Value, Each:
		return " " + meta
	case List:
		return " " + meta + " [" + meta + " ...]"
	case Flag:
	}
	return ""
}

// Help gives the text of --help.
func (c *Command) Help() string {
	var b strings.Builder
	b.WriteString(c.Usage() + "\n" + c.About + "\n")
	all := append([]Option{*help()}, c.Options...)
	groups := []string{""}
	for i := range all {
		if !slices.Contains(groups, all[i].Group) {
			groups = append(groups, all[i].Group)
		}
	}
	for _, group := range groups {
		b.WriteString("\n" + cmp.Or(group, "options") + ":\n")
		for i := range all {
			if all[i].Group == group && !all[i].Hidden {
				all[i].describe(&b)
			}
		}
	}
	return b.String()
}

// describe writes an option's entry.
func (o *Option) describe(b *strings.Builder) {
	names := make([]string, len(o.Names))
	for i, n := range o.Names {
		names[i] = n + o.operand()
	}
	head := "  " + strings.Join(names, ", ")
	if len(head) > helpColumn-2 {
		head += "\n" + strings.Repeat(" ", helpColumn-1)
	} else {
		head += strings.Repeat(" ", helpColumn-1-len(head))
	}
	b.WriteString(wrap(head, strings.Fields(o.Help), helpColumn) + "\n")
}

// wrap puts words after head, and goes on below at the column indent.
func wrap(head string, words []string, indent int) string {
	var b strings.Builder
	b.WriteString(head)
	column := len(head) - strings.LastIndexByte(head, '\n') - 1
	for _, word := range words {
		if column+1+len(word) > width && column > indent {
			b.WriteString("\n" + strings.Repeat(" ", indent-1))
			column = indent - 1
		}
		b.WriteString(" " + word)
		column += 1 + len(word)
	}
	return b.String()
}
