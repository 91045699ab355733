"""The reader of plain YAML, by examples and against PyYAML where it is installed."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flambeau.worker.plainyaml import PlainYamlError, parse


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("", None),
        ("# only a comment\n", None),
        ("a: 1", {"a": 1}),
        ("---\na: 1\n...\n", {"a": 1}),
        ("\ufeffa: 1\r\nb: 2\r\n", {"a": 1, "b": 2}),
        (
            "minWorkers: 1\nhandler:\n  profile: true\n  nested:\n    n: 3\n",
            {"minWorkers": 1, "handler": {"profile": True, "nested": {"n": 3}}},
        ),
        ("a:\n- 1\n- 2\nb: x", {"a": [1, 2], "b": "x"}),
        ("a:\n  - n: 1\n    m: 2\n  - n: 3\n", {"a": [{"n": 1, "m": 2}, {"n": 3}]}),
        ("- - 1\n  - 2\n-\n  - 3\n-\n", [[1, 2], [3], None]),
        ("a: [1, two, 'th, ree', [4], {f: 5, g}]", {"a": [1, "two", "th, ree", [4], {"f": 5, "g": None}]}),
        ('a: {"b":1, "c": [],}', {"a": {"b": 1, "c": []}}),
        ("a: [1,\n   # c\n   2]\nb: 3", {"a": [1, 2], "b": 3}),
        ("a: 'it''s # no comment' # comment", {"a": "it's # no comment"}),
        ('a: "\\u00e9\\n\\t\\x41 \\"q\\""', {"a": 'é\n\tA "q"'}),
        ("a: b#c\nb: http://x/y:80/z", {"a": "b#c", "b": "http://x/y:80/z"}),
        ("a: x 'y # z", {"a": "x 'y"}),
        ("'quoted key': 1\n\"other\": 2\n3: three", {"quoted key": 1, "other": 2, 3: "three"}),
        (
            "a: yes\nb: No\nc: on\nd: ~\ne: null\nf:\ng: yEs",
            {"a": True, "b": False, "c": True, "d": None, "e": None, "f": None, "g": "yEs"},
        ),
        ("a: 0x1F\nb: 017\nc: 1_000\nd: -5\ne: 0b11\nf: 08", {"a": 31, "b": 15, "c": 1000, "d": -5, "e": 3, "f": "08"}),
        (
            "a: 1.5\nb: .5\nc: 1e3\nd: 1.0e+3\ne: .inf\nf: -.Inf\ng: -.5",
            {"a": 1.5, "b": 0.5, "c": "1e3", "d": 1000.0, "e": math.inf, "f": -math.inf, "g": "-.5"},
        ),
        ("a: |\n  one\n   two\n\n  three\nb: |-\n  x\nc: |+\n  y\n\n", {"a": "one\n two\n\nthree\n", "b": "x", "c": "y\n\n"}),
        ('d:\n  - &x "ModelName"\n  - &y Level\nm: [*x, *y]', {"d": ["ModelName", "Level"], "m": ["ModelName", "Level"]}),
        ("base: &b\n  k: 1\nother: *b", {"base": {"k": 1}, "other": {"k": 1}}),
        ("just a text", "just a text"),
    ],
)
def test_value(text: str, wanted: Any) -> None:
    assert parse(text) == wanted
    yaml = pytest.importorskip("yaml")
    assert yaml.safe_load(text) == wanted, "the test itself must say what YAML means"


@pytest.mark.parametrize(
    ("text", "line", "why"),
    [
        ("a: !!str 1", 1, "tags"),
        ("a: 1\nb: >\n  folded\n", 2, "> is not read"),
        ("a:\n  <<: *b", 2, "merge keys"),
        ("a: 1\n---\nb: 2", 2, "second document"),
        ("a: one\n  two\n", 1, "several lines"),
        ('a: "one\n  two"\n', 1, "no end on its line"),
        ("a: [1, 2", 1, "no end"),
        ("a: 1\n\tb: 2", 2, "tab"),
        ("a: 1\n b: 2", 1, "several lines"),
        ("a:\n    b: 1\n  c: 2", 3, "indented more"),
        ("[a\n  b]", 1, "several lines"),
        ("a: *nowhere", 1, "no anchor"),
        ("a: 2024-01-02", 1, "quotes"),
        ("a: 12:30", 1, "quotes"),
        ("? a\n: b", 1, "question mark"),
        ("a: 'x' y", 1, "closing quote"),
        ("a: b: c", 1, "same line"),
        ("a: - b", 1, "same line"),
        ("minWorkers: [unclosed\n", 1, "no end"),
        ("%YAML 1.1\n---\na: 1", 1, "directives"),
    ],
)
def test_what_is_not_read_is_named_with_its_line(text: str, line: int, why: str) -> None:
    with pytest.raises(PlainYamlError) as refused:
        parse(text, "model-config.yaml")
    assert str(refused.value).startswith("model-config.yaml, line %d: " % line)
    assert why in str(refused.value)
    assert "PyYAML" in str(refused.value)


def same(one: Any, other: Any) -> bool:
    if type(one) is not type(other):
        return False
    if isinstance(one, dict):
        return len(one) == len(other) and all(same(a, b) for a, b in zip(one.items(), other.items()))
    if isinstance(one, (list, tuple)):
        return len(one) == len(other) and all(same(a, b) for a, b in zip(one, other))
    return bool(one == other or (one != one and other != other))


values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8) | st.integers(), inner, max_size=4),
    max_leaves=12,
)


@given(values, st.booleans())
@settings(max_examples=300)
def test_what_pyyaml_writes_is_read_as_it_was_or_refused(value: Any, flow: bool) -> None:
    yaml = pytest.importorskip("yaml")
    text = yaml.safe_dump(value, default_flow_style=flow, width=10**9, sort_keys=False)
    try:
        got = parse(text)
    except PlainYamlError:
        return
    assert same(got, yaml.safe_load(text))


pieces = st.sampled_from(
    [
        "a",
        "b: ",
        "- ",
        ": ",
        "\n",
        "\n  ",
        "\n    ",
        "'",
        '"',
        "#",
        " # ",
        "[",
        "]",
        "{",
        "}",
        ", ",
        "1",
        "1.5",
        "yes",
        "~",
        "|",
        "\\",
        "&n ",
        "*n",
        "---",
        "x y",
        "é",
        "-",
    ]
)


@given(st.lists(pieces, max_size=20).map("".join))
@settings(max_examples=1000)
def test_any_text_is_read_as_pyyaml_reads_it_or_refused(text: str) -> None:
    yaml = pytest.importorskip("yaml")
    try:
        got = parse(text)
    except PlainYamlError:
        return
    assert same(got, yaml.safe_load(text))


def test_plain_configurations_are_never_refused() -> None:
    """The settings of TorchServe's documentation, in the ways in which people write them."""
    text = """
# frontend
minWorkers: 1
maxWorkers: 2      # two
batchSize: 4
deviceType: "gpu"
deviceIds: [0, 1]
parallelType: 'none'
torchrun:
    nproc-per-node: 2
    OMP_NUMBER_THREADS: 1
pt2:
  compile:
    enable: True
    backend: inductor
handler:
    model_path: "model/models--facebook--opt-350m/snapshots/08ab"
    max_length: 50
    adapters: {a: "x", b: y}
    labels:
        - zero
        - one
"""
    got = parse(text)
    assert got["deviceIds"] == [0, 1]
    assert got["torchrun"] == {"nproc-per-node": 2, "OMP_NUMBER_THREADS": 1}
    assert got["handler"]["labels"] == ["zero", "one"]
    assert got["pt2"] == {"compile": {"enable": True, "backend": "inductor"}}
