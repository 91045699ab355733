package malformed

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/goccy/go-yaml"
)

// inside is what only this program knows, and nobody else is to read.
var inside = []string{"json", "Go ", "struct", "interface", "unmarshal", "[]", "int64", "float", "malformed", "\n"}

func check(t *testing.T, from, got, want string) {
	t.Helper()
	if got != want {
		t.Errorf("%q: %q, want %q", from, got, want)
	}
	for _, word := range inside {
		if strings.Contains(got, word) {
			t.Errorf("%q: %q has %q", from, got, word)
		}
	}
}

type record struct {
	Name    string         `json:"name" yaml:"name"`
	Yes     *bool          `json:"yes" yaml:"yes"`
	Count   int            `json:"count" yaml:"count"`
	Size    uint32         `json:"size" yaml:"size"`
	Share   float64        `json:"share" yaml:"share"`
	List    []int64        `json:"list" yaml:"list"`
	Labels  map[string]int `json:"labels" yaml:"labels"`
	Inner   []*record      `json:"inner" yaml:"inner"`
	Content []byte         `json:"content" yaml:"-"`
}

func TestJSON(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		`[]`:                              `it is an array and has to be an object (byte 1)`,
		`"x"`:                             `it is a string and has to be an object (byte 3)`,
		`{"name":5}`:                      `"name" is a number and has to be a string (byte 9)`,
		`{"name":[]}`:                     `"name" is an array and has to be a string (byte 9)`,
		`{"name":{}}`:                     `"name" is an object and has to be a string (byte 9)`,
		`{"yes":"no"}`:                    `"yes" is a string and has to be true or false (byte 11)`,
		`{"count":1.5}`:                   `"count" is the number 1.5 and has to be a whole number (byte 12)`,
		`{"count":true}`:                  `"count" is true or false and has to be a whole number (byte 13)`,
		`{"count":1e30}`:                  `"count" is the number 1e30 and has to be a whole number (byte 13)`,
		`{"size":-1}`:                     `"size" is the number -1 and has to be a whole number, 0 or more (byte 10)`,
		`{"size":5000000000}`:             `"size" is the number 5000000000, which is out of range (byte 18)`,
		`{"count":-10000000000000000000}`: `"count" is the number -10000000000000000000, which is out of range (byte 30)`,
		`{"share":"x"}`:                   `"share" is a string and has to be a number (byte 12)`,
		`{"list":{}}`:                     `"list" is an object and has to be an array (byte 9)`,
		`{"list":["1"]}`:                  `"list" is a string and has to be a whole number (byte 12)`,
		`{"labels":[]}`:                   `"labels" is an array and has to be an object (byte 11)`,
		`{"labels":{"a":"b"}}`:            `"labels" is a string and has to be a whole number (byte 18)`,
		`{"inner":[{"yes":1}]}`:           `"inner.yes" is a number and has to be true or false (byte 18)`,
		`{"content":"%%%%"}`:              `a string is no base64, from its byte 0 on`,
		`{"other":1}`:                     `the member "other" is not known`,
		`{"name":"x`:                      `it ends too early`,
		``:                                `it is empty`,
		`{"name":}`:                       `invalid character '}' looking for beginning of value (byte 9)`,
		`{x}`:                             `invalid character 'x' looking for beginning of object key string (byte 2)`,
	} {
		d := json.NewDecoder(bytes.NewReader([]byte(text)))
		d.DisallowUnknownFields()
		err := d.Decode(&record{})
		if err == nil {
			t.Fatal(text)
		}
		check(t, text, JSON(err), want)
	}
	if got := JSON(json.Unmarshal([]byte(`{"name":"x`), &record{})); got != "unexpected end of JSON input (byte 10)" {
		t.Error(got)
	}
	if got := JSON(errors.New("its own words")); got != "its own words" {
		t.Error(got)
	}
}

func TestYAML(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		"- a\n":                              `line 1: it is a list and has to be a map of keys to values`,
		"text":                               `line 1: it is a string and has to be a map of keys to values`,
		"name: [1]\n":                        `line 1: "name" is a list and has to be a string`,
		"count: 1\nyes: maybe\n":             `line 2: "yes" is the string "maybe" and has to be true or false`,
		"yes: 1\n":                           `line 1: "yes" is a number and has to be true or false`,
		"count: many\n":                      `line 1: "count" is the string "many" and has to be a whole number`,
		"count: " + strings.Repeat("x", 100): `line 1: "count" is a string and has to be a whole number`,
		"count: 99999999999999999999\n":      `line 1: "count" is the number 99999999999999999999, which is out of range`,
		"share: high\n":                      `line 1: "share" is the string "high" and has to be a number`,
		"list: {a: 1}\n":                     `line 1: "list" is a map of keys to values and has to be a list`,
		"list: [a, 2]\n":                     `line 1: an element of "list" is the string "a" and has to be a whole number`,
		"list:\n- a\n":                       `line 2: an element of "list" is the string "a" and has to be a whole number`,
		"list:\n- 1\n- a\n":                  `line 3: a value is the string "a" and has to be a whole number`,
		"labels: {a: b}\n":                   `line 1: "a" is the string "b" and has to be a whole number`,
		"labels: 5\n":                        `line 1: "labels" is a number and has to be a map of keys to values`,
		"inner: [5]\n":                       `line 1: an element of "inner" is a number and has to be a map of keys to values`,
		"name: a\nname: b\n":                 `line 2: mapping key "name" already defined at [1:1]`,
		"list: [1\n":                         `line 1: sequence end token ']' not found`,
		"name: *x\n":                         `line 1: could not find alias "x"`,
	} {
		err := yaml.Unmarshal([]byte(text), &record{})
		if err == nil {
			t.Fatal(text)
		}
		got := YAML(fmt.Errorf("wrapped: %w", err))
		check(t, text, strings.ReplaceAll(got, "[1:1]", "1:1"), strings.ReplaceAll(want, "[1:1]", "1:1"))
	}
	if got := YAML(errors.New("its own words")); got != "its own words" {
		t.Error(got)
	}
}
