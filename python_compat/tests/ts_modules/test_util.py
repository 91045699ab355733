"""Helpers for handlers."""

from __future__ import annotations

import json
import sys
import types
import warnings
from pathlib import Path
from typing import Any

import pytest

from ts.utils import util
from ts.utils.timeit_decorator import timeit


def test_prediction_exception() -> None:
    error = util.PredictionException("too small", 422)
    assert (error.message, error.error_code, str(error), error.args) == ("too small", 422, "too small : 422", ("too small",))
    assert util.PredictionException("x").error_code == 500
    from ts.service import PredictionException

    assert PredictionException is util.PredictionException


@pytest.mark.parametrize(
    ("probs", "mapping", "classes", "wanted"),
    [
        ([[0.1, 0.9]], None, None, [{"0": 0.1, "1": 0.9}]),
        ([[0.1, 0.9]], {"0": "a", "1": "b"}, None, [{"a": 0.1, "b": 0.9}]),
        ([[0.9, 0.1]], {"0": "a", "7": "s"}, [[7, 0]], [{"s": 0.9, "a": 0.1}]),
        ([[1], [2]], None, [[3], [4]], [{"3": 1}, {"4": 2}]),
        ([], None, [], []),
    ],
)
def test_map_class_to_label(probs: Any, mapping: Any, classes: Any, wanted: Any) -> None:
    assert util.map_class_to_label(probs, mapping, classes) == wanted


@pytest.mark.parametrize(
    ("probs", "mapping", "kind"), [((1,), None, Exception), ([[1]], ["a"], Exception), ([[1]], {"x": "y"}, KeyError)]
)
def test_map_class_to_label_refuses(probs: Any, mapping: Any, kind: Any) -> None:
    with pytest.raises(kind):
        util.map_class_to_label(probs, mapping)


@pytest.mark.parametrize(
    ("content", "wanted"),
    [
        ({"0": "a"}, {"0": "a"}),
        ({"0": ["n01", "cat"]}, {"0": "cat"}),
        ({"object_type_names": ["p", "q"]}, {"0": "p", "1": "q"}),
        ({"0": "é"}, {"0": "é"}),
    ],
)
def test_load_label_mapping(tmp_path: Path, content: Any, wanted: Any) -> None:
    path = tmp_path / "index_to_name.json"
    path.write_text(json.dumps(content, ensure_ascii=False), encoding="utf-8")
    assert util.load_label_mapping(str(path)) == wanted


@pytest.mark.parametrize("content", [["a"], {"0": 1}, {"0": [1]}, {"0": None}])
def test_load_label_mapping_refuses(tmp_path: Path, content: Any) -> None:
    path = tmp_path / "index_to_name.json"
    path.write_text(json.dumps(content))
    with pytest.raises(Exception, match="index_to_name"):
        util.load_label_mapping(str(path))


def test_no_label_mapping(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    assert util.load_label_mapping(str(tmp_path / "nope.json")) is None
    assert "Inference output will not include class name" in caplog.text


def test_list_classes_from_module() -> None:
    module = types.ModuleType("some_module")
    exec("class B: pass\nclass A(B): pass\nfrom ts.context import Context\nx = 1", module.__dict__)
    assert [c.__name__ for c in util.list_classes_from_module(module)] == ["A", "B"]
    assert [c.__name__ for c in util.list_classes_from_module(module, module.A)] == ["A"]


def test_check_valid_pt2_backend(caplog: pytest.LogCaptureFixture) -> None:
    assert util.check_valid_pt2_backend("inductor")
    assert util.check_valid_pt2_backend(util.PT2Backend.ONNXRT)
    assert not caplog.records
    assert not util.check_valid_pt2_backend("zebra")
    assert "zebra is not a supported backend" in caplog.text


@pytest.mark.parametrize("with_pyyaml", [True, False])
def test_get_yaml_config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, with_pyyaml: bool) -> None:
    if with_pyyaml:
        pytest.importorskip("yaml")
    else:
        monkeypatch.setitem(sys.modules, "yaml", None)
    path = tmp_path / "c.yaml"
    path.write_text("minWorkers: 1\nhandler:\n  names: [é, 2]\n", encoding="utf-8")
    assert util.get_yaml_config(str(path)) == {"minWorkers": 1, "handler": {"names": ["é", 2]}}
    path.write_text("")
    assert util.get_yaml_config(str(path)) is None
    path.write_text("a: [")
    with pytest.raises(Exception, match=r"c\.yaml|flow"):
        util.get_yaml_config(str(path))


def test_deprecated() -> None:
    @util.deprecated(version=1.0, replacement="new.place")
    def old(value: int) -> int:
        """Says something."""
        return value + 1

    with pytest.warns(PendingDeprecationWarning, match="old is deprecated in 1.0 and moved to new.place"):
        assert old(1) == 2
    assert old.__doc__ == "Says something."
    with pytest.warns(FutureWarning):
        util.deprecated(2, klass=FutureWarning)(len)("x")


def test_html_is_cleaned_up() -> None:
    assert util.CLEANUP_REGEX.sub("", "<b>x</b>&amp;&#39;&#x1f;y & z <") == "xy & z <"


def test_timeit(capsys: pytest.CaptureFixture[str]) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert timeit(len)("abc") == 3
    assert "func: 'len' took a total of" in capsys.readouterr().out
