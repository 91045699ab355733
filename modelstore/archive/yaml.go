package archive

import (
	"bytes"
	"errors"
	"fmt"
	"math"
	"strings"

	"github.com/goccy/go-yaml/ast"
	"github.com/goccy/go-yaml/parser"
	"github.com/goccy/go-yaml/token"
)

const (
	// wholeYAML is up to which size a file is parsed as it is. The parser's time grows with the square of the number of lines, so of a larger
	// file only the server's own keys are parsed.
	wholeYAML   = 64 << 10
	maxYAMLNest = 256 // of brackets, and of lists that begin on one line
)

// yamlEntry is one key of a mapping.
type yamlEntry struct {
	key     string
	line    int
	value   ast.Node            // without its anchor
	anchors map[string]ast.Node // of the document so far
}

// readYAML parses a file, or of a large one the server's own keys.
func readYAML(text []byte) (*ast.File, error) {
	if err := checkNesting(text); err != nil {
		return nil, err
	}
	if len(text) > wholeYAML {
		if text = prune(text); len(bytes.Trim(text, "\n")) > wholeYAML {
			return nil, fmt.Errorf("the keys that are the server's, and those with anchors or tags, take more than %d bytes", wholeYAML)
		}
	}
	return parseBytes(text)
}

// parseYAML gives the top-level entries of a file that nobody is harmed by.
func parseYAML(text []byte) ([]yamlEntry, error) {
	if err := checkLines(text); err != nil {
		return nil, err
	}
	file, err := readYAML(text)
	if err != nil {
		return nil, err
	}
	if _, err := checkYAML(file); err != nil {
		return nil, err
	}
	return topLevel(file)
}

// topLevel gives the top-level entries of a file's only document, in order. A nil list is an empty document.
func topLevel(file *ast.File) ([]yamlEntry, error) {
	var body ast.Node
	for _, doc := range file.Docs {
		if _, isDirective := doc.Body.(*ast.DirectiveNode); isDirective || doc.Body == nil {
			continue
		}
		if body != nil {
			return nil, errors.New("it holds more than one document")
		}
		body = doc.Body
	}
	if body == nil {
		return nil, nil
	}
	mapping, ok := body.(*ast.MappingNode)
	if !ok {
		return nil, fmt.Errorf("it has to be a map of keys to values, and it is a %s", strings.ToLower(body.Type().String()))
	}
	root := yamlEntry{anchors: map[string]ast.Node{}}
	ast.Walk(collector{into: root.anchors}, mapping)
	return root.entries(mapping), nil
}

// parseBytes parses, and takes a panic of the parser, which is not ours, for an error: the text comes from a model's author.
func parseBytes(text []byte) (file *ast.File, err error) {
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("the YAML parser gave up: %v", p)
		}
	}()
	if file, err = parser.ParseBytes(text, 0, parser.AllowDuplicateMapKey()); err != nil {
		return nil, errors.New(firstLine(err.Error()))
	}
	return file, nil
}

// collector notes all the anchors of a document.
type collector struct{ into map[string]ast.Node }

func (c collector) Visit(node ast.Node) ast.Visitor {
	if anchor, ok := node.(*ast.AnchorNode); ok && anchor.Name != nil {
		c.into[anchor.Name.GetToken().Value] = anchor.Value
	}
	return c
}

func firstLine(s string) string {
	line, _, _ := strings.Cut(s, "\n")
	return line
}

// checkNesting refuses what would keep the parser busy for minutes. Brackets in texts count, too; no sensible file has so many open ones.
func checkNesting(text []byte) error {
	depth := 0
	for _, c := range text {
		switch c {
		case '[', '{':
			depth++
		case ']', '}':
			depth = max(0, depth-1)
		}
		if depth > maxYAMLNest {
			return errors.New("it is nested too deeply")
		}
	}
	if bytes.Contains(text, bytes.Repeat([]byte("- "), maxYAMLNest)) || bytes.Contains(text, bytes.Repeat([]byte("? "), maxYAMLNest)) {
		return errors.New("it is nested too deeply")
	}
	return nil
}

// prune blanks the top-level entries of a large document that are not the server's own and hold no anchor and no tag.
func prune(text []byte) []byte {
	var kept, block []byte
	ours := true // what comes before the first key
	flush := func() {
		if ours || bytes.ContainsAny(block, "&") || bytes.Contains(block, []byte("!!")) || bytes.Contains(block, []byte("!<")) {
			kept = append(kept, block...)
		} else {
			kept = append(kept, bytes.Repeat([]byte("\n"), bytes.Count(block, []byte("\n")))...) // the lines keep their numbers
		}
		block = block[:0]
	}
	for line := range bytes.Lines(text) {
		key, isKey := topLevelKey(line)
		if isKey || bytes.HasPrefix(line, []byte("---")) {
			flush()
			ours = !isKey || isOurs(key)
		}
		block = append(block, line...)
	}
	flush()
	return kept
}

// topLevelKey gives the key of a line that begins one at the top level.
func topLevelKey(line []byte) (string, bool) {
	key, rest, found := bytes.Cut(line, []byte(":"))
	if !found || len(key) == 0 || strings.IndexByte(" \t#-{[]}\"'%&*!|>,", key[0]) >= 0 {
		return "", false
	}
	if len(bytes.TrimLeft(rest, "\r\n")) > 0 && rest[0] != ' ' && rest[0] != '\t' {
		return "", false
	}
	return string(bytes.TrimRight(key, " ")), true
}

func isOurs(key string) bool {
	switch key {
	case "minWorkers", "maxWorkers", "batchSize", "maxBatchDelay", "responseTimeout", "startupTimeout", "deviceType", "deviceIds", "parallelType",
		"parallelLevel", "torchrun", "maxRetryTimeoutInSec", "clientTimeoutInMills", "jobQueueSize", "useJobTicket", "sequenceBatching",
		"priorityLevels", "defaultPriorityLevel", "continuousBatching", "asyncCommunication", "sequenceMaxIdleMSec", "sequenceTimeoutMSec", "maxSequenceJobQueueSize", "maxNumSequence",
		"maxConcurrency", "fairness", "batching", "preferredBatchSizes", "paddedBatchSizes", "slo", "useVenv", "retry", "keepAlive", "recycle", "swap", "warmup", "plugin", "pluginArgs", "ensemble", "<<":
		return true
	}
	return false
}

// maxMerges bounds how many "<<" are followed: they could form a circle.
const maxMerges = 32

// entries lists the entries of a mapping, the merged ones first, so that the mapping's own win.
func (e yamlEntry) entries(m *ast.MappingNode) []yamlEntry {
	merges := maxMerges
	return e.entriesOf(m, &merges)
}

func (e yamlEntry) entriesOf(m *ast.MappingNode, merges *int) []yamlEntry {
	var merged, own []yamlEntry
	for _, v := range m.Values {
		if _, isMerge := v.Key.(*ast.MergeKeyNode); isMerge {
			if *merges--; *merges < 0 {
				continue
			}
			if target, ok := e.resolve(v.Value).(*ast.MappingNode); ok {
				merged = append(merged, e.entriesOf(target, merges)...)
			}
			continue
		}
		tok := v.Key.GetToken()
		if tok == nil || tok.Position == nil {
			continue
		}
		own = append(own, yamlEntry{key: tok.Value, line: tok.Position.Line, value: e.resolve(v.Value), anchors: e.anchors})
	}
	return append(merged, own...)
}

// with is the same entry with another value.
func (e yamlEntry) with(node ast.Node) yamlEntry {
	e.value = e.resolve(node)
	return e
}

// resolve follows aliases and takes anchors off.
func (e yamlEntry) resolve(node ast.Node) ast.Node {
	for range maxMerges {
		switch n := node.(type) {
		case *ast.AnchorNode:
			node = n.Value
		case *ast.AliasNode:
			target, ok := e.anchors[n.Value.GetToken().Value]
			if !ok {
				return nil
			}
			node = target
		case *ast.MappingValueNode:
			return ast.Mapping(n.Start, false, n)
		default:
			return node
		}
	}
	return nil
}

// integer gives the value if it is one of Java's int.
func (e yamlEntry) integer() (int, bool) {
	node, ok := e.value.(*ast.IntegerNode)
	if !ok {
		return 0, false
	}
	switch v := node.Value.(type) {
	case uint64:
		return int(v), v <= math.MaxInt32
	case int64:
		return int(v), v >= math.MinInt32 && v <= math.MaxInt32
	}
	return 0, false
}

// boolean gives the value if it is one in YAML 1.1, which TorchServe and its workers read.
func (e yamlEntry) boolean() (value, ok bool) {
	switch node := e.value.(type) {
	case *ast.BoolNode:
		return node.Value, true
	case *ast.StringNode:
		if node.Token == nil || node.Token.Type != token.StringType {
			return false, false // in quotes
		}
		switch node.Value {
		case "yes", "Yes", "YES", "on", "On", "ON":
			return true, true
		case "no", "No", "NO", "off", "Off", "OFF":
			return false, true
		}
	}
	return false, false
}

func (e yamlEntry) text() (string, bool) {
	switch node := e.value.(type) {
	case *ast.StringNode:
		return node.Value, true
	case *ast.LiteralNode:
		return node.Value.Value, true
	}
	return "", false
}

// scalarText gives the text of a value that is no list and no map, as it is written.
func (e yamlEntry) scalarText() (string, bool) {
	switch node := e.value.(type) {
	case *ast.IntegerNode, *ast.FloatNode, *ast.BoolNode:
		return node.GetToken().Value, true
	}
	return e.text()
}

// shown is the value for a warning.
func (e yamlEntry) shown() string {
	if e.value == nil {
		return ""
	}
	const most = 80
	if s := e.value.String(); len(s) <= most {
		return s
	}
	return e.value.String()[:most] + "…"
}
