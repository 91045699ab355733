package malformed

import (
	"errors"
	"reflect"
	"strconv"
	"strings"

	"github.com/goccy/go-yaml"
	"github.com/goccy/go-yaml/ast"
	"github.com/goccy/go-yaml/token"
)

// YAML words an error of the YAML library in one line. Others are given as they are.
func YAML(err error) string {
	wrong, ok := errors.AsType[yaml.Error](err)
	if !ok {
		return err.Error()
	}
	where := wrong.GetToken()
	text := ""
	switch wrong := wrong.(type) {
	case *yaml.TypeError:
		text = named(where) + " is " + yamlValue(wrong.SrcType, where) + " and has to be " + yamlType(wrong.DstType)
	case *yaml.OverflowError:
		text = named(where) + " is the number " + wrong.SrcNum + ", which is out of range"
	case *yaml.UnexpectedNodeTypeError:
		text = named(where) + " is " + yamlNode(wrong.Actual) + " and has to be " + yamlNode(wrong.Expected)
	default:
		text = oneLine(wrong.GetMessage())
	}
	if where == nil || where.Position == nil {
		return text
	}
	return "line " + strconv.Itoa(where.Position.Line) + ": " + text
}

// named says which value begins with a token: that of a key, an element of its list, or else one by itself.
func named(t *token.Token) string {
	if t == nil || t.Prev == nil {
		return "it"
	}
	before, element := t.Prev, ""
	if before.Type == token.SequenceStartType || before.Type == token.SequenceEntryType {
		before, element = before.Prev, "an element of "
	}
	if before != nil && before.Type == token.MappingValueType && before.Prev != nil {
		return element + strconv.Quote(before.Prev.Value)
	}
	return "a value"
}

func yamlValue(t reflect.Type, where *token.Token) string {
	const most = 40
	switch name := yamlType(t); {
	case t != nil && t.Kind() == reflect.String && where != nil && len(where.Value) <= most:
		return "the string " + strconv.Quote(where.Value)
	case strings.Contains(name, "number"):
		return "a number"
	default:
		return name
	}
}

// yamlType names a type as users of YAML do.
func yamlType(t reflect.Type) string {
	if t == nil {
		return "nothing"
	}
	if name := scalar(t); name != "" {
		return name
	}
	if k := t.Kind(); k == reflect.Slice || k == reflect.Array {
		return "a list"
	}
	return keyed
}

// keyed is a mapping.
const keyed = "a map of keys to values"

func yamlNode(kind ast.NodeType) string {
	switch kind { //nolint:exhaustive // the others are no values
	case ast.MappingType, ast.MappingValueType:
		return keyed
	case ast.SequenceType:
		return "a list"
	case ast.StringType, ast.LiteralType:
		return "a string"
	case ast.IntegerType, ast.FloatType, ast.InfinityType, ast.NanType:
		return "a number"
	case ast.BoolType:
		return "true or false"
	case ast.NullType:
		return "empty"
	}
	return article(kind.YAMLName())
}

func oneLine(s string) string { return strings.ReplaceAll(s, "\n", " ") }
