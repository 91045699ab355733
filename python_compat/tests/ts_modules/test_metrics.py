"""Metrics of handlers: what lines they make."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any, Callable, List

import pytest

import ts
import ts.metrics.metric_cache_errors as errors
from ts.metrics.dimension import Dimension
from ts.metrics.metric import Metric
from ts.metrics.metric_cache_yaml_impl import MetricsCacheYamlImpl, _packaged
from ts.metrics.metric_encoder import MetricEncoder
from ts.metrics.metric_type_enum import MetricTypes
from ts.metrics.metrics_store import MetricsStore
from ts.service import emit_metrics

PACKAGED = Path(ts.__file__).with_name("configs") / "metrics.yaml"


@pytest.fixture
def cache() -> MetricsCacheYamlImpl:
    made = MetricsCacheYamlImpl(str(PACKAGED))
    made.initialize_cache()
    made.model_name = "mod"
    made.set_request_ids({0: "r0", 1: "r1"})
    return made


def lines(caplog: pytest.LogCaptureFixture) -> List[str]:
    """The metric lines, without host and time."""
    return [
        re.sub(r"#hostname:[^,]+,\d+", "#hostname:H,T", r.getMessage()) for r in caplog.records if "[METRICS]" in r.getMessage()
    ]


@pytest.fixture(autouse=True)
def at_info(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")


@pytest.mark.parametrize(
    ("call", "wanted"),
    [
        (lambda m: m.add_counter("a", 1), "a.Count:1|#ModelName:mod,Level:Model|#type:COUNTER|#hostname:H,T,r0,r1"),
        (lambda m: m.add_counter("a", 2, 0), "a.Count:2|#ModelName:mod,Level:Model|#type:COUNTER|#hostname:H,T,r0"),
        (lambda m: m.add_time("t", 1.5), "t.Milliseconds:1.5|#ModelName:mod,Level:Model|#type:GAUGE|#hostname:H,T,r0,r1"),
        (lambda m: m.add_time("t", 1, 1, "s"), "t.Seconds:1|#ModelName:mod,Level:Model|#type:GAUGE|#hostname:H,T,r1"),
        (lambda m: m.add_size("s", 3, 1, "kB"), "s.Kilobytes:3|#ModelName:mod,Level:Model|#type:GAUGE|#hostname:H,T,r1"),
        (lambda m: m.add_percent("p", 50.5), "p.Percent:50.5|#ModelName:mod,Level:Model|#type:GAUGE|#hostname:H,T,r0,r1"),
        (lambda m: m.add_error("e", 1), "e.unit:1|#Level:Error|#type:COUNTER|#hostname:H,T"),
        (
            lambda m: m.add_metric("x", 1, "bananas", None, [Dimension("F", "v")], MetricTypes.HISTOGRAM),
            "x.bananas:1|#F:v,ModelName:mod,Level:Model|#type:HISTOGRAM|#hostname:H,T,r0,r1",
        ),
        (
            lambda m: m.add_counter("q", 1, None, [Dimension("Level", "mine"), Dimension("ModelName", "x")]),
            "q.Count:1|#Level:mine,ModelName:x|#type:COUNTER|#hostname:H,T,r0,r1",
        ),
        (
            lambda m: m.add_metric_to_cache("G", "count", ["ModelName"], MetricTypes.GAUGE).add_or_update(4.25, ["mod"]),
            "G.Count:4.25|#ModelName:mod|#type:GAUGE|#hostname:H,T",
        ),
        (
            lambda m: m.get_metric("HandlerTime", MetricTypes.GAUGE).add_or_update(2, ["m", "L"], "id"),
            "HandlerTime.Milliseconds:2|#ModelName:m,Level:L|#type:GAUGE|#hostname:H,T,id",
        ),
    ],
)
def test_line(cache: MetricsCacheYamlImpl, caplog: pytest.LogCaptureFixture, call: Callable[[Any], Any], wanted: str) -> None:
    call(cache)
    assert lines(caplog) == ["[METRICS]" + wanted]
    assert caplog.records[-1].name == "ts.metrics.caching_metric"


def test_the_default_dimensions_do_not_pile_up(cache: MetricsCacheYamlImpl, caplog: pytest.LogCaptureFixture) -> None:
    for _ in range(3):
        cache.add_counter("a", 1)
        cache.add_time("b", 1)
    assert {line.split("|")[1] for line in lines(caplog)} == {"#ModelName:mod,Level:Model"}


def test_a_list_of_dimensions_is_completed_in_place(cache: MetricsCacheYamlImpl) -> None:
    mine = [Dimension("A", "b")]
    cache.add_counter("a", 1, None, mine)
    cache.add_time("b", 1, dimensions=mine)
    assert [str(d) for d in mine] == ["A:b", "ModelName:mod", "Level:Model"]


@pytest.mark.parametrize(
    ("call", "why"),
    [
        (lambda m: m.add_counter("a", -1), "cannot be negative"),
        (
            lambda m: m.get_metric("HandlerTime", MetricTypes.GAUGE).add_or_update(1, ["x"]),
            "should correspond to Dimension names",
        ),
        (lambda m: m.get_metric("HandlerTime", MetricTypes.GAUGE).add_or_update(1, None), "should correspond to Dimension names"),
    ],
)
def test_what_is_not_reported(cache: MetricsCacheYamlImpl, caplog: pytest.LogCaptureFixture, call: Any, why: str) -> None:
    call(cache)
    (line,) = lines(caplog)
    assert line.startswith("[METRICS]Failed to update metric with name:")
    assert why in line
    assert caplog.records[-1].levelname == "ERROR"


def test_a_metric_keeps_the_dimensions_of_its_first_use(cache: MetricsCacheYamlImpl, caplog: pytest.LogCaptureFixture) -> None:
    cache.add_counter("z", 1, None, [Dimension("A", "b")])
    cache.add_counter("z", 1, None, [Dimension("A", "b"), Dimension("C", "d")])
    assert "Failed to update" in lines(caplog)[1]
    cache.get_metric("z").update(3, "rid", [Dimension("k", "v")])
    assert lines(caplog)[-1] == "[METRICS]z.Count:3|#k:v|#type:COUNTER|#hostname:H,T,rid"


@pytest.mark.parametrize(
    ("call", "kind", "base"),
    [
        (lambda m: m.add_time("t", 1, None, "h"), errors.MetricsCacheValueError, ValueError),
        (lambda m: m.add_size("t", 1, None, "TB"), ValueError, ValueError),
        (lambda m: m.get_metric("nope"), errors.MetricsCacheKeyError, KeyError),
        (lambda m: m.get_metric("HandlerTime"), errors.MetricsCacheKeyError, KeyError),
        (lambda m: m.get_metric(5), errors.MetricsCacheTypeError, TypeError),
        (lambda m: m.get_metric("a", "gauge"), errors.MetricsCacheTypeError, TypeError),
        (lambda m: m.add_metric_to_cache(1, "count"), errors.MetricsCacheTypeError, TypeError),
        (lambda m: m.add_metric_to_cache("a", None), errors.MetricsCacheTypeError, TypeError),
        (lambda m: m.add_metric_to_cache("a", "count", "x"), errors.MetricsCacheTypeError, TypeError),
    ],
)
def test_refusals(cache: MetricsCacheYamlImpl, call: Any, kind: Any, base: Any) -> None:
    with pytest.raises(kind) as refused:
        call(cache)
    assert isinstance(refused.value, base)


def test_an_overridden_metric_is_warned_of(cache: MetricsCacheYamlImpl, caplog: pytest.LogCaptureFixture) -> None:
    metric = cache.add_metric_to_cache("HandlerTime", "s", ["a"], MetricTypes.GAUGE)
    assert "Overriding existing key" in caplog.text
    assert cache.get_metric("HandlerTime", MetricTypes.GAUGE) is metric
    assert cache.cache_keys() == ["gauge:HandlerTime", "gauge:PredictionTime"]


def test_metrics_while_loading(cache: MetricsCacheYamlImpl, caplog: pytest.LogCaptureFixture) -> None:
    cache.set_request_ids("some-uuid")
    cache.add_counter("loads", 1)
    assert lines(caplog) == ["[METRICS]loads.Count:1|#ModelName:mod,Level:Model|#type:COUNTER|#hostname:H,T,some-uuid"]


@pytest.mark.parametrize("with_pyyaml", [True, False])
def test_what_is_built_in_is_what_the_file_says(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, with_pyyaml: bool) -> None:
    if with_pyyaml:
        pytest.importorskip("yaml")
    else:
        monkeypatch.setitem(sys.modules, "yaml", None)
    copy = tmp_path / "metrics.yaml"
    copy.write_bytes(PACKAGED.read_bytes())
    parsed = MetricsCacheYamlImpl(str(copy))._parsed_file
    assert parsed["model_metrics"] == _packaged()["model_metrics"]
    assert len(parsed["ts_metrics"]["gauge"]) == 13


@pytest.mark.parametrize(
    ("content", "kind"),
    [
        ("a: [", "MetricsCachePyYamlError"),
        ("ts_metrics: {}", "MetricsCacheKeyError"),
        ("model_metrics:\n", "MetricsCacheValueError"),
        ("model_metrics:\n  zebra:\n    - name: x\n", "MetricsCacheKeyError"),
        ("model_metrics:\n  gauge:\n    - name: x\n", "MetricsCacheKeyError"),
        (None, "MetricsCacheIOError"),
    ],
)
@pytest.mark.parametrize("with_pyyaml", [True, False])
def test_bad_configurations(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, content: Any, kind: str, with_pyyaml: bool) -> None:
    if with_pyyaml:
        pytest.importorskip("yaml")
    else:
        monkeypatch.setitem(sys.modules, "yaml", None)
        vars(errors).pop("MetricsCachePyYamlError", None)
    path = tmp_path / "m.yaml"
    if content is not None:
        path.write_text(content)
    with pytest.raises(Exception) as refused:
        MetricsCacheYamlImpl(str(path)).initialize_cache()
    assert type(refused.value).__name__ == kind
    vars(errors).pop("MetricsCachePyYamlError", None)


@pytest.mark.parametrize("path", ["", None, [], {}])
def test_no_configuration(path: Any) -> None:
    with pytest.raises(errors.MetricsCacheTypeError):
        MetricsCacheYamlImpl(path)


def test_store_of_older_handlers(caplog: pytest.LogCaptureFixture) -> None:
    store = MetricsStore({0: "a", 1: "b"}, "mod")
    store.add_counter("x", 1)
    store.add_time("t", 2, 0)
    store.add_size("s", 3, unit="GB")
    store.add_percent("p", 4)
    store.add_error("e", "text")
    store.add_metric("m", 5, "u")
    assert not lines(caplog)
    assert [re.sub(r"hostname:[^,]+,\d+", "hostname:H,T", str(m)) for m in store.store][:3] == [
        "x.Count:1|#ModelName:mod,Level:Model|#hostname:H,T,a,b",
        "t.Milliseconds:2|#ModelName:mod,Level:Model|#hostname:H,T,a",
        "s.Gigabytes:3|#ModelName:mod,Level:Model|#hostname:H,T,a,b",
    ]
    store.add_counter("x", 7)
    assert lines(caplog) == ["[METRICS]x.Count:7|#ModelName:mod,Level:Model|#type:COUNTER|#hostname:H,T,a,b"]
    assert len(store.store) == len(store.cache) == 6
    for refused in (lambda: store.add_time("t", 1, unit="h"), lambda: store.add_size("t", 1, unit="h")):
        with pytest.raises(ValueError):
            refused()


def test_metric(caplog: pytest.LogCaptureFixture) -> None:
    metric = Metric("n", 1, "ms", [Dimension("a", "b")], "rid")
    metric.update(4)
    metric.reset()
    emit_metrics([metric])
    emit_metrics(None)
    assert lines(caplog) == [
        "[METRICS]n.Milliseconds:4|#a:b|#type:COUNTER|#hostname:H,T,rid",
        "[METRICS]n.Milliseconds:0|#a:b|#type:COUNTER|#hostname:H,T,rid",
        "[METRICS]n.Milliseconds:1|#a:b|#hostname:H,T,rid",
    ]
    encoded = json.loads(json.dumps(metric, cls=MetricEncoder))
    assert (encoded["MetricName"], encoded["Unit"], encoded["Dimensions"]) == ("n", "Milliseconds", [{"Name": "a", "Value": "b"}])
    with pytest.raises(TypeError):
        json.dumps(object(), cls=MetricEncoder)


def test_submodules_are_there_when_they_are_asked_for() -> None:
    import ts.metrics

    assert ts.metrics.unit.Units().units[None] == "unit"
    with pytest.raises(AttributeError, match="zebra"):
        ts.metrics.zebra  # noqa: B018
