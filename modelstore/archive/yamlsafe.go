package archive

import (
	"bytes"
	"strings"

	"github.com/goccy/go-yaml/ast"
)

const (
	maxYAMLLine  = 1 << 20
	maxYAMLNodes = 1_000_000 // with all aliases followed
)

// checkLines refuses values that no configuration has.
func checkLines(text []byte) error {
	n := 0
	for line := range bytes.Lines(text) {
		if n++; len(line) > maxYAMLLine {
			return refuse("put it into a file of its own", "line %d of its configuration file is longer than %d bytes", n, maxYAMLLine)
		}
	}
	return nil
}

// yamlKey is a key and where it stands.
type yamlKey struct {
	name string
	line int
}

// checkYAML refuses what harms those who read a file without care, the handler's libraries among them: tags that make objects of any class, and aliases
// that multiply. It gives the keys that a map has twice.
func checkYAML(file *ast.File) (twice []yamlKey, err error) {
	c := &yamlChecker{anchors: map[string]ast.Node{}, sizes: map[string]int{}}
	for _, doc := range file.Docs {
		if doc.Body == nil {
			continue
		}
		if directive, ok := doc.Body.(*ast.DirectiveNode); ok {
			if strings.Contains(directive.String(), "TAG") {
				return nil, refuse("leave the line out", "its configuration file gives tags other names (%.80q)", directive.String())
			}
			continue
		}
		ast.Walk(collector{into: c.anchors}, doc.Body)
		ast.Walk(c, doc.Body)
		if c.err == nil && c.sizeOf(doc.Body) > maxYAMLNodes {
			c.err = refuse("write out what it needs", "its configuration file has aliases that multiply to more than %d values", maxYAMLNodes)
		}
	}
	return c.twice, c.err
}

// yamlChecker walks over a document.
type yamlChecker struct {
	anchors map[string]ast.Node
	sizes   map[string]int // of anchors; 0 while one is looked at
	twice   []yamlKey
	err     error // the first one
}

// Visit looks at one value.
func (c *yamlChecker) Visit(node ast.Node) ast.Visitor {
	switch n := node.(type) {
	case *ast.TagNode:
		if c.err == nil && !isPlainTag(n.Start.Value) {
			c.err = refuse("leave the tag out", "its configuration file has the tag %.80q in line %d, which a careless reader makes an object of",
				n.Start.Value, n.Start.Position.Line)
		}
	case *ast.MappingNode:
		c.findTwice(n)
	}
	return c
}

func (c *yamlChecker) findTwice(m *ast.MappingNode) {
	seen := map[string]bool{}
	for _, v := range m.Values {
		if _, isMerge := v.Key.(*ast.MergeKeyNode); isMerge {
			continue
		}
		tok := v.Key.GetToken()
		if tok == nil || tok.Position == nil {
			continue
		}
		if seen[tok.Value] {
			c.twice = append(c.twice, yamlKey{tok.Value, tok.Position.Line})
		}
		seen[tok.Value] = true
	}
}

// isPlainTag says whether a tag is one of YAML's own, which every reader knows.
func isPlainTag(tag string) bool {
	name, ok := strings.CutPrefix(tag, "!!")
	if !ok {
		return false
	}
	switch name {
	case "str", "int", "float", "bool", "null", "map", "seq", "set", "omap", "pairs", "binary", "timestamp":
		return true
	}
	return false
}

// sizeOf counts the values that a value stands for, all aliases followed. The count stops soon after the limit.
func (c *yamlChecker) sizeOf(node ast.Node) int {
	size := 1
	add := func(child ast.Node) {
		if child != nil && size <= maxYAMLNodes && c.err == nil {
			size += c.sizeOf(child)
		}
	}
	switch n := node.(type) {
	case *ast.AliasNode:
		return c.sizeOfAnchor(n)
	case *ast.AnchorNode:
		add(n.Value)
	case *ast.TagNode:
		add(n.Value)
	case *ast.SequenceNode:
		for _, v := range n.Values {
			add(v)
		}
	case *ast.MappingNode:
		for _, v := range n.Values {
			add(v)
		}
	case *ast.MappingValueNode:
		add(n.Key)
		add(n.Value)
	case *ast.MappingKeyNode:
		add(n.Value)
	}
	return size
}

// sizeOfAnchor counts what an alias stands for, each once.
func (c *yamlChecker) sizeOfAnchor(alias *ast.AliasNode) int {
	name := alias.Value.GetToken().Value
	target, known := c.anchors[name]
	if !known {
		return 1
	}
	size, seen := c.sizes[name]
	if !seen {
		c.sizes[name] = 0
		size = c.sizeOf(target)
		c.sizes[name] = size
	}
	if size == 0 && c.err == nil {
		c.err = refuse("write out what it needs", "its configuration file has the alias %.80q, which is part of what it stands for", name)
	}
	return size
}
