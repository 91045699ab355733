"""The context of a handler."""

from __future__ import annotations

import copy
import os
import pickle
from typing import Any

import pytest

from ts.context import Context, RequestProcessor


def made(rows: int = 2) -> Context:
    context = Context("m", "/d", {"model": {}}, 4, 1, "0.12.0")
    context.request_processor = [RequestProcessor({"X-A": str(i), "body": {"content-type": "a/b"}}) for i in range(rows)]
    context.request_ids = {i: "id-%d" % i for i in range(rows)}
    return context


def test_while_loading() -> None:
    context = Context("m", "/d", None, 1, None, "0.12.0", False, "metrics", {"a": 1})
    assert context.request_ids is None
    assert context.request_processor is None
    assert context.get_request_id() is None
    assert context.stopping_criteria is None
    assert (context.metrics, context.model_yaml_config, context.manifest) == ("metrics", {"a": 1}, None)
    context.set_response_status(500)
    for call in (lambda: context.get_request_header(0, "x"), lambda: context.set_all_response_status(500)):
        with pytest.raises(TypeError):
            call()


def test_system_properties_are_one_dict() -> None:
    context = made()
    context.system_properties["mine"] = 1
    assert context.system_properties == {
        "model_dir": "/d",
        "gpu_id": 1,
        "batch_size": 4,
        "server_name": "MMS",
        "server_version": "0.12.0",
        "limit_max_image_pixels": True,
        "mine": 1,
    }


def test_requests() -> None:
    context = made()
    assert [context.get_request_id(), context.get_request_id(1), context.get_request_id(9)] == ["id-0", "id-1", None]
    assert context.get_request_header(1, "X-A") == "1"
    assert context.get_request_header(1, "x-a") is None
    assert context.get_all_request_header(0) is context.request_processor[0].get_request_properties()
    with pytest.raises(IndexError):
        context.get_request_header(2, "X-A")


def test_time_left(monkeypatch: pytest.MonkeyPatch) -> None:
    context = made(1)
    assert context.get_time_left() is None
    monkeypatch.setattr("ts.context.time.time", lambda: 1000.0)
    context.request_processor = [
        RequestProcessor.until({}, 1_002_500_000_000),
        RequestProcessor.until({}, 999_000_000_000),
        RequestProcessor({}),
    ]
    assert [context.get_time_left(), context.get_time_left(1), context.get_time_left(2)] == [2.5, 0.0, None]
    with pytest.raises(IndexError):
        context.get_time_left(3)


def test_responses() -> None:
    context = made()
    assert context.get_response_status(0) == (200, None)
    context.set_response_status(404, idx=1)
    assert context.get_response_status(1) == (404, "")
    context.set_all_response_status(503, "Busy")
    assert [context.get_response_status(i) for i in (0, 1)] == [(503, "Busy")] * 2
    context.set_response_content_type(0, "text/csv")
    context.set_response_header(0, "X", "1")
    assert context.get_response_content_type(0) == "text/csv"
    assert context.get_response_content_type(1) is None
    assert context.get_response_headers(0) == {"content-type": "text/csv", "X": "1"}
    assert context.request_processor[0].get_response_header("X") == "1"
    with pytest.raises(IndexError):
        context.set_response_status(200, idx=2)


def test_sequence(monkeypatch: pytest.MonkeyPatch) -> None:
    context = made()
    assert context.get_sequence_id(0) is None
    context.request_processor[0].get_request_properties()["ts_request_sequence_id"] = "s"
    assert context.get_sequence_id(0) == "s"
    assert context.header_key_sequence_start == "ts_request_sequence_start"
    monkeypatch.setitem(os.environ, "TS_REQUEST_SEQUENCE_END", "my-end")
    assert made().header_key_sequence_end == "my-end"


def test_equality_is_by_attributes() -> None:
    one, other = (Context("m", "/d", None, 1, None, "0.12.0") for _ in range(2))
    assert one == other
    other.cache = {}  # type: ignore[attr-defined]
    assert one != other
    assert one != "m"
    with pytest.raises(TypeError):
        hash(one)


@pytest.mark.parametrize("duplicate", [copy.deepcopy, lambda c: pickle.loads(pickle.dumps(c))])
def test_a_context_can_be_copied(duplicate: Any) -> None:
    context = made()
    other = duplicate(context)
    other.set_response_status(404, idx=0)
    assert context.get_response_status(0) == (200, None)
    assert other.get_request_header(1, "X-A") == "1"
