package openapi

import (
	"slices"
	"strconv"
	"strings"

	"github.com/flambeau-serve/flambeau/plugins/backend"
)

const bytesType = "BYTES"

// Examples have no more elements than this: a picture's would be a megabyte.
const mostExample = 64

// element is the schema of one element of a datatype, and a value of it.
func element(datatype string) (schema object, value any) {
	whole := func(least, most any) object {
		return object{"type": "integer", "minimum": least, "maximum": most}
	}
	switch datatype {
	case "BOOL":
		return object{"type": "boolean"}, false
	case "INT8":
		return whole(-1<<7, 1<<7-1), 0
	case "INT16":
		return whole(-1<<15, 1<<15-1), 0
	case "INT32":
		return whole(-1<<31, 1<<31-1), 0
	case "INT64":
		return whole(int64(-1<<63), int64(1<<63-1)), 0
	case "UINT8":
		return whole(0, 1<<8-1), 0
	case "UINT16":
		return whole(0, 1<<16-1), 0
	case "UINT32":
		return whole(0, 1<<32-1), 0
	case "UINT64":
		return whole(0, uint64(1<<64-1)), 0
	case "FP16":
		return object{"type": "number", "minimum": -65504, "maximum": 65504}, 0.5
	case "FP32", "BF16":
		return object{"type": "number", "minimum": -3e38, "maximum": 3e38}, 0.5
	case "FP64":
		return object{"type": "number"}, 0.5
	case bytesType:
		return object{"type": "string"}, "text"
	}
	return object{}, 0
}

// sizes gives the shape of an example: every open dimension is 1. ok is false for shapes whose examples would be too large, or have no elements.
func sizes(shape []int64) (dims []int64, count int64, ok bool) {
	dims, count = slices.Clone(shape), 1
	for i, d := range dims {
		if d < 0 {
			dims[i] = 1
		}
		if count *= dims[i]; count > mostExample {
			return dims, count, false
		}
	}
	return dims, count, count > 0
}

// nested is the schema of nested arrays of a shape.
func nested(datatype string, shape []int64) object {
	s, _ := element(datatype)
	for _, d := range slices.Backward(shape) {
		s = object{"type": "array", "items": s}
		if d >= 0 {
			s["minItems"], s["maxItems"] = d, d
		}
	}
	return s
}

// nestedExample is an example of nested arrays.
func nestedExample(datatype string, dims []int64) any {
	_, v := element(datatype)
	for _, d := range slices.Backward(dims) {
		v = slices.Repeat(list{v}, int(d))
	}
	return v
}

// tensorsBody is a body with the inputs as arrays: an object by their names, or the one array of a model with one input.
func tensorsBody(d *backend.Description) object {
	properties, required, example := object{}, list{}, object{}
	small := true
	for i := range d.Inputs {
		p := &d.Inputs[i]
		properties[p.Name] = nested(p.DataType, p.Shape)
		required = append(required, p.Name)
		dims, _, ok := sizes(p.Shape)
		if small = small && ok; small {
			example[p.Name] = nestedExample(p.DataType, dims)
		}
	}
	schema := object{"type": "object", "properties": properties, "required": required}
	if len(d.Inputs) == 1 {
		p := &d.Inputs[0]
		schema = object{"anyOf": list{nested(p.DataType, p.Shape), schema}}
	}
	body := object{"schema": schema}
	if small {
		body["example"] = example
	}
	return body
}

// port is the schema of a tensor of the protocol, as a request has it.
func port(p *backend.Port) object {
	e, _ := element(p.DataType)
	dims := make(list, 0, len(p.Shape))
	most := int64(1) // elements, when all dimensions are known
	for _, d := range p.Shape {
		if d < 0 {
			dims = append(dims, object{"type": "integer", "minimum": 0})
			most = -1
			continue
		}
		dims = append(dims, object{"const": d})
		if most >= 0 {
			most *= d
		}
	}
	shape := object{"type": "array", "minItems": len(dims), "maxItems": len(dims)}
	if len(dims) > 0 {
		shape["prefixItems"] = dims
	}
	data := object{"type": "array", "description": "The elements, row by row, or nested arrays.", "items": e}
	if most >= 0 {
		data["minItems"], data["maxItems"] = most, most
	}
	return object{
		"type": "object", "required": list{"name", "datatype", "shape", "data"},
		"properties": object{
			"name": object{"const": p.Name}, "datatype": object{"const": p.DataType}, "shape": shape,
			"data": object{"anyOf": list{data, nested(p.DataType, p.Shape)}}, "parameters": parameters(),
		},
	}
}

func parameters() object {
	return object{"type": "object", "additionalProperties": object{"type": list{"string", "number", "boolean"}}}
}

// portExample is an example of a tensor of the protocol.
func portExample(p *backend.Port) (object, bool) {
	dims, count, ok := sizes(p.Shape)
	if !ok {
		return nil, false
	}
	if dims == nil {
		dims = []int64{}
	}
	_, v := element(p.DataType)
	return object{"name": p.Name, "datatype": p.DataType, "shape": dims, "data": slices.Repeat(list{v}, int(count))}, true
}

// answered is the schema of an output in an object of nested arrays.
func answered(p *backend.Port) object {
	s := object{"description": p.DataType + " of shape " + shapeText(p.Shape) + ": nested arrays, without the first dimension when the request had none. A number that JSON does not know is null."}
	if !isExact(p) {
		return s
	}
	whole := nestedAnswer(p.DataType, p.Shape)
	s["anyOf"] = list{whole}
	if len(p.Shape) > 0 {
		s["anyOf"] = list{whole, nestedAnswer(p.DataType, p.Shape[1:])}
	}
	return s
}

// isExact says whether an output is as it is described: what is no tensor in a model is described as texts, and one that may have any shape as a row.
func isExact(p *backend.Port) bool {
	return p.DataType != bytesType && (len(p.Shape) != 1 || p.Shape[0] >= 0)
}

// nestedAnswer is the schema of nested arrays of a shape that a model has made.
func nestedAnswer(datatype string, shape []int64) object {
	s := madeElement(datatype)
	for _, d := range slices.Backward(shape) {
		s = object{"type": "array", "items": s}
		if d >= 0 {
			s["minItems"], s["maxItems"] = d, d
		}
	}
	return s
}

// madeElement is the schema of one element that a model has made: a float may be infinite, or no number.
func madeElement(datatype string) object {
	s, _ := element(datatype)
	if s["type"] == "number" {
		return object{"type": list{"number", "null"}}
	}
	return s
}

func shapeText(shape []int64) string {
	parts := make([]string, len(shape))
	for i, d := range shape {
		parts[i] = strconv.FormatInt(d, 10)
	}
	return "[" + strings.Join(parts, ", ") + "]"
}

// answeredPort is the schema of an output of the protocol.
func answeredPort(p *backend.Port) object {
	shape := object{"type": "array", "description": shapeText(p.Shape) + ", where -1 is any length.", "items": object{"type": "integer", "minimum": 0}}
	if isExact(p) {
		dims := list{}
		for _, d := range p.Shape {
			if d < 0 {
				dims = append(dims, object{"type": "integer", "minimum": 0})
			} else {
				dims = append(dims, object{"const": d})
			}
		}
		shape["minItems"], shape["maxItems"] = len(dims), len(dims)
		if len(dims) > 0 {
			shape["prefixItems"] = dims
		}
	}
	return object{
		"type": "object", "required": list{"name", "datatype", "shape"},
		"properties": object{
			"name": object{"const": p.Name}, "datatype": object{"const": p.DataType}, "shape": shape,
			"data": object{"type": "array", "items": madeElement(p.DataType)}, "parameters": object{"type": "object"},
		},
	}
}

// classified is the schema of an output of which the best classes were asked for.
func classified(p *backend.Port) object {
	return object{
		"type": "object", "required": list{"name", "datatype", "shape"},
		"properties": object{
			"name": object{"const": p.Name}, "datatype": object{"const": bytesType, "description": "With the parameter classification: score:index, or score:index:label."},
			"shape": object{"type": "array", "items": object{"type": "integer", "minimum": 0}},
			"data":  object{"type": "array", "items": object{"type": "string"}}, "parameters": object{"type": "object"},
		},
	}
}
