"""The sample handler, which mypy checks strictly in `make lint`, also does what it says."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from typing import Any

import pytest

from ts.context import Context, RequestProcessor
from ts.metrics.metric_cache_yaml_impl import MetricsCacheYamlImpl

HERE = Path(__file__).parent
SRC = HERE.parents[1] / "src"


@pytest.fixture
def sample() -> Any:
    spec = importlib.util.spec_from_file_location("handler_sample", HERE / "handler_sample.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_sample_runs(sample: Any, tmp_path: Path) -> None:
    (tmp_path / "index_to_name.json").write_text('{"0": "characters"}')
    metrics = MetricsCacheYamlImpl(str(SRC / "ts" / "configs" / "metrics.yaml"))
    metrics.initialize_cache()
    context = Context("m", str(tmp_path), {"model": {}}, 2, None, "0.12.0", True, metrics, {})
    handler = sample.SampleHandler()
    handler.initialize(context)
    sent = []

    class Channel:
        def sendall(self, data: bytes) -> None:
            sent.append(data)

    context.cl_socket = Channel()  # type: ignore[attr-defined]
    context.request_ids = metrics.request_ids = {0: "a", 1: "b"}
    context.request_processor = [RequestProcessor({"content-type": "text/plain"}), RequestProcessor({})]
    answers = handler.handle([{"body": bytearray(b"abc")}, {"data": "de"}], context)
    assert [json.loads(answer) for answer in answers] == [{"characters": 3.0}, {"characters": 2.0}]
    assert context.get_response_headers(1)["X-Request"] == "a text/plain"
    assert len(sent) == 1
    with pytest.raises(Exception, match="neither data nor body : 400"):
        handler.handle([{}], context)


def test_the_package_says_that_it_is_typed() -> None:
    assert (SRC / "ts" / "py.typed").is_file()
