"""timed, MicroBatching, tokens, classes by name, envelopes."""

from __future__ import annotations

import threading
import types
from typing import Any, Dict, List, Optional

import pytest

from ts.context import Context, RequestProcessor
from ts.handler_utils import text_utils
from ts.handler_utils.micro_batching import HANDLER_METHODS, MicroBatching
from ts.handler_utils.timer import timed
from ts.handler_utils.utils import import_class
from ts.torch_handler.request_envelope.body import BodyEnvelope
from ts.torch_handler.request_envelope.json import JSONEnvelope
from ts.torch_handler.request_envelope.kserve import KServeEnvelope


class Metrics:
    def __init__(self) -> None:
        self.names: List[str] = []

    def add_time(self, name: str, value: float, *more: Any) -> None:
        assert value >= 0
        self.names.append(name)


class Timed:
    context: Any = None

    @timed
    def preprocess(self, value: int, more: int = 0) -> int:
        return value + more


@pytest.mark.parametrize(
    ("config", "wanted"),
    [
        ({}, []),
        ({"handler": {}}, []),
        ({"handler": {"profile": False}}, []),
        ({"handler": {"profile": True}}, ["ts_handler_preprocess"]),
    ],
)
def test_timed(config: Dict[str, Any], wanted: List[str]) -> None:
    handler = Timed()
    assert handler.preprocess(1, more=2) == 3
    handler.context = types.SimpleNamespace(model_yaml_config=config, metrics=Metrics())
    assert handler.preprocess(1, more=2) == 3
    assert handler.context.metrics.names == wanted


def test_timed_needs_the_attribute_context() -> None:
    with pytest.raises(AttributeError, match="context"):
        Timed.preprocess(types.SimpleNamespace(), 1)


class Handler:
    """A handler whose steps tell who they are."""

    def __init__(self) -> None:
        self.context: Any = None
        self.micro: Optional[MicroBatching] = None
        self.seen: List[Any] = []

    def preprocess(self, data: List[Any]) -> List[Any]:
        if "bad" in data:
            raise ValueError("a bad row")
        self.seen.append((self.micro.get_micro_batch_idx() if self.micro else None, len(data)))
        return [row + 1 for row in data]

    def inference(self, data: List[Any]) -> List[Any]:
        return [row * 10 for row in data]

    def postprocess(self, data: List[Any]) -> List[Any]:
        return [str(row) for row in data]

    def _is_describe(self) -> bool:
        return False

    def _is_explain(self) -> bool:
        return False


@pytest.fixture
def micro() -> Any:
    handler = Handler()
    handler.micro = MicroBatching(handler, micro_batch_size=2, parallelism={"inference": 2})
    yield handler.micro
    handler.micro.shutdown()


def test_micro_batches_come_out_in_order(micro: MicroBatching) -> None:
    assert micro.handle(list(range(7))) == [str((n + 1) * 10) for n in range(7)]
    assert sorted(micro.handler.seen) == [(0, 2), (1, 2), (2, 2), (3, 1)]
    assert micro.handle([]) == []
    assert micro.get_micro_batch_idx() is None


def test_micro_batching_is_called_as_handle(micro: MicroBatching) -> None:
    context = types.SimpleNamespace(metrics=Metrics())
    assert micro([1, 2, 3], context) == ["20", "30", "40"]
    assert micro.handler.context is context
    assert context.metrics.names == ["HandlerTime"]


def test_an_error_of_a_step_is_raised_and_the_next_batch_runs(micro: MicroBatching) -> None:
    with pytest.raises(ValueError, match="a bad row"):
        micro.handle([1, 2, "bad", 4, 5, 6])
    assert micro.handle([1]) == ["20"]


def test_parallelism(micro: MicroBatching) -> None:
    assert micro.parallelism == {"inference": 2}
    assert [len(micro.thread_groups[step]) for step in HANDLER_METHODS] == [1, 2, 1]
    micro.parallelism = {"preprocess": 3, "inference": 1}
    assert [len(micro.thread_groups[step]) for step in HANDLER_METHODS] == [3, 1, 1]
    assert micro.handle(list(range(5))) == [str((n + 1) * 10) for n in range(5)]
    with pytest.raises(AssertionError):
        micro.parallelism = {"zebra": 1}


def test_shutdown_ends_the_threads() -> None:
    before = threading.active_count()
    micro = MicroBatching(Handler())
    assert threading.active_count() == before + 3
    micro.shutdown()
    assert threading.active_count() == before


def test_tokens() -> None:
    tokenize = text_utils.get_tokenizer("basic_english")
    assert tokenize is not None
    assert tokenize('Hello, "World"! It\'s a.b<br />(x);y:z?') == [
        "hello",
        ",",
        "world",
        "!",
        "it",
        "'",
        "s",
        "a",
        ".",
        "b",
        "(",
        "x",
        ")",
        "y",
        "z",
        "?",
    ]
    assert (text_utils.get_tokenizer(None) or len)(" a  B ") == ["a", "B"]
    assert text_utils.get_tokenizer("spacy") is None
    with pytest.raises(ValueError, match="English"):
        text_utils.get_tokenizer("basic_english", "de")
    assert list(text_utils.ngrams_iterator(["here", "we", "are"], 2)) == ["here", "we", "are", "here we", "we are"]
    assert list(text_utils.ngrams_iterator(["a"], 3)) == ["a"]


def test_contractions() -> None:
    from ts.torch_handler.contractions import CONTRACTION_MAP

    assert CONTRACTION_MAP["don't"] == "do not"
    assert CONTRACTION_MAP["i'm"] == "i am"
    assert CONTRACTION_MAP["where'd"] == "where did"
    assert list(CONTRACTION_MAP) == sorted(CONTRACTION_MAP)


@pytest.mark.parametrize(("name", "prefix"), [("os.path.join", None), ("path.join", "os"), ("join", "os.path")])
def test_import_class(name: str, prefix: Optional[str]) -> None:
    import os

    assert import_class(name, prefix) is os.path.join


@pytest.mark.parametrize(("name", "prefix"), [("", None), ("X", None), ("nowhere.X", None), ("os.nope", None), ("X", "os")])
def test_import_class_refuses(name: str, prefix: Optional[str]) -> None:
    with pytest.raises(ImportError):
        import_class(name, prefix)


def enveloped(envelope: Any, data: List[Any], entry: Any = lambda data, ctx: data, explain: str = "False") -> Any:
    context = Context("m", "/d", {"model": {"modelName": "nm", "modelVersion": "2"}}, 1, None, "0.12.0")
    context.request_processor = [RequestProcessor({"explain": explain}) for _ in data]
    context.request_ids = {i: "id-%d" % i for i in range(len(data))}
    return envelope(entry).handle(data, context)


def test_body_envelope() -> None:
    assert enveloped(BodyEnvelope, [{"data": b"x", "body": b"z"}, {"body": b"y"}, {}]) == [b"x", b"y", None]
    assert enveloped(BodyEnvelope, []) == []


def test_json_envelope() -> None:
    got = enveloped(JSONEnvelope, [{"body": {"instances": [1, 2]}}, {"instances": [3]}])
    assert got == ['{"predictions": [1, 2]}', '{"predictions": [3]}']
    instances = [{"b64": "aGk="}, {"a": {"b64": "aGk="}, "n": 1}]
    assert enveloped(JSONEnvelope, [{"data": {"instances": instances}}], lambda d, c: [str(v) for v in d]) == [
        "{\"predictions\": [\"b'hi'\", \"{'a': b'hi', 'n': 1}\"]}"
    ]
    for bad in ({"body": {"x": 1}}, {"body": {"instances": []}}):
        with pytest.raises((KeyError, IndexError)):
            enveloped(JSONEnvelope, [bad])


@pytest.mark.parametrize(("explain", "key"), [("False", "predictions"), ("True", "explanations")])
def test_kserve_envelope(explain: str, key: str) -> None:
    assert enveloped(KServeEnvelope, [{"body": bytearray(b'{"instances": [1, "a"]}')}], explain=explain) == [{key: [1, "a"]}]
    assert enveloped(KServeEnvelope, [{"data": {"instances": [2]}}], explain=explain) == [{key: [2]}]


def test_kservev2_envelope() -> None:
    pytest.importorskip("numpy")
    from ts.torch_handler.request_envelope.kservev2 import KServev2Envelope

    body = {
        "id": "req-1",
        "inputs": [
            {"name": "a", "shape": [2, 2], "datatype": "FP32", "data": [1, 2, 3, 4.5]},
            {"name": "b", "shape": [1], "datatype": "BYTES", "data": ["text"]},
        ],
    }
    seen: List[Any] = []

    def entry(data: Any, ctx: Any) -> List[Any]:
        seen.append((ctx.input_names, [one["data"] for one in data]))
        return [one["data"] for one in data]

    (answer,) = enveloped(KServev2Envelope, [{"body": body}], entry)
    assert seen == [(["a", "b"], [[[1.0, 2.0], [3.0, 4.5]], "text"])]
    assert answer == {
        "id": "req-1",
        "model_name": "nm",
        "model_version": "2",
        "outputs": [
            {"name": "a", "datatype": "FP64", "data": [1.0, 2.0, 3.0, 4.5], "shape": (4,)},
            {"name": "b", "datatype": "BYTES", "data": ["text"], "shape": (1,)},
        ],
    }
    blank = {"id": "  ", "inputs": [{"name": "a", "shape": [1], "datatype": "BOOL", "data": [True]}]}
    (answer,) = enveloped(KServev2Envelope, [{"body": blank}], lambda d, c: [one["data"] for one in d])
    assert (answer["id"], answer["outputs"][0]["datatype"]) == ("id-0", "BOOL")
