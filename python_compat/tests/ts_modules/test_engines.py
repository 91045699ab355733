"""The handlers of engines that no test machine has (vLLM, TensorRT-LLM, DALI), against modules that take their calls."""

from __future__ import annotations

import asyncio
import importlib
import sys
import types
from pathlib import Path
from typing import Any, ClassVar, Dict, Iterator, List

import pytest

from ts.context import Context, RequestProcessor


class Metrics:
    """Keeps the names of what is reported."""

    def __init__(self) -> None:
        self.names: List[str] = []

    def add_time(self, name: str, *rest: Any) -> None:
        self.names.append(name)


class Channel:
    """Keeps the pieces of a stream."""

    def __init__(self) -> None:
        self.pieces: List[Any] = []

    def send_piece(self, values: Any, ids: Any, message: str, code: int, context: Any) -> None:
        self.pieces.append(values[0])


def context(folder: Path, config: Dict[str, Any], **headers: str) -> Context:
    made = Context("m", str(folder), {"model": {}}, 1, None, "0.12.0", True, Metrics(), config)
    made.request_processor = [RequestProcessor(dict(headers))]
    made.request_ids = {0: "id"}
    made.cl_socket = Channel()  # type: ignore[attr-defined]
    return made


@pytest.fixture
def packages(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Gives a function that puts modules with these attributes into sys.modules."""
    before = set(sys.modules)

    def put(**said: Dict[str, Any]) -> None:
        for name, attributes in said.items():
            module = types.ModuleType(name.replace("__", "."))
            vars(module).update(attributes)
            monkeypatch.setitem(sys.modules, module.__name__, module)

    yield put
    for name in set(sys.modules) - before:
        if name.startswith("ts.torch_handler."):
            del sys.modules[name]


class Answer:
    """What an OpenAI service answers with."""

    def __init__(self, said: Any) -> None:
        self.said = said

    def model_dump(self) -> Any:
        return self.said


class Refusal(Answer):
    """vLLM's ErrorResponse."""


class Asked:
    """A request as vLLM has parsed it."""

    def __init__(self, said: Dict[str, Any]) -> None:
        self.said = said
        self.stream = said.get("stream", False)

    @classmethod
    def model_validate(cls, said: Dict[str, Any]) -> Asked:
        return cls(said)


class OpenAI:
    """The two services."""

    made: ClassVar[List[Any]] = []

    def __init__(self, *positional: Any, **named: Any) -> None:
        self.made.append((positional, named))

    async def show_available_models(self) -> Answer:
        return Answer(["m"])

    async def create_completion(self, request: Asked, raw: Any) -> Any:
        assert raw.headers == {}
        assert not await raw.is_disconnected()
        if request.said.get("prompt") == "bad":
            return Refusal({"error": "bad"})
        if not request.stream:
            return Answer({"text": request.said["prompt"]})

        async def pieces() -> Any:
            for piece in ("data: a\n\n", "data: b\n\n", "data: [DONE]\n\n"):
                yield piece

        return pieces()

    async def create_chat_completion(self, request: Asked, raw: Any) -> Any:
        return Answer({"chat": request.said["messages"]})


class Arguments:
    """vLLM's AsyncEngineArgs."""

    def __init__(self, model: str) -> None:
        self.model = model
        self.served_model_name = None
        self.max_model_len = None


class Engine:
    """vLLM's AsyncLLMEngine."""

    arguments: Any = None

    @classmethod
    def from_engine_args(cls, arguments: Any) -> Engine:
        cls.arguments = arguments
        return cls()

    async def get_model_config(self) -> str:
        return "model config"


@pytest.fixture
def vllm(packages: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    openai = "vllm__entrypoints__openai__"
    packages(
        **{
            "vllm": {"AsyncEngineArgs": Arguments, "AsyncLLMEngine": Engine},
            "vllm__entrypoints": {},
            "vllm__entrypoints__openai": {},
            openai + "protocol": {"ChatCompletionRequest": Asked, "CompletionRequest": Asked, "ErrorResponse": Refusal},
            openai + "serving_chat": {"OpenAIServingChat": OpenAI},
            openai + "serving_completion": {"OpenAIServingCompletion": OpenAI},
            openai + "serving_engine": {"LoRAModulePath": lambda name, path: (name, path)},
        }
    )
    monkeypatch.setattr(OpenAI, "made", [])
    loop = asyncio.new_event_loop()
    asyncio.set_event_loop(loop)
    yield importlib.import_module("ts.torch_handler.vllm_handler")
    loop.close()
    asyncio.set_event_loop(None)


CONFIG: Dict[str, Any] = {
    "handler": {"model_path": "weights", "adapters": {"a": "/a"}, "vllm_engine_config": {"max_model_len": 9, "no_such": 1}}
}


def ask(handler: Any, made: Context, row: Any) -> Any:
    return asyncio.get_event_loop().run_until_complete(handler.handle([row], made))


def test_vllm(vllm: Any, tmp_path: Path) -> None:
    (tmp_path / "weights").mkdir()
    handler = vllm.VLLMHandler()
    handler.initialize(context(tmp_path, CONFIG))
    assert handler.initialized
    assert (Engine.arguments.model, Engine.arguments.max_model_len) == (str(tmp_path / "weights"), 9)
    assert not hasattr(Engine.arguments, "no_such")
    (completion, common), (chat, named) = OpenAI.made
    assert completion[1:] == ("model config", [str(tmp_path / "weights")])
    assert common == {"lora_modules": [("a", "/a")], "prompt_adapters": None, "request_logger": None}
    assert chat[3] == "assistant"
    assert named["chat_template"] is None

    made = context(tmp_path, CONFIG, url_path="v1/completions")
    assert ask(handler, made, {"body": {"prompt": "x"}}) == [{"text": "x"}]
    assert made.metrics.names == ["HandlerTime"]  # type: ignore[attr-defined]
    assert ask(handler, made, {"body": {"prompt": "bad", "stream": True}}) == [{"error": "bad"}]
    assert ask(handler, made, {"body": {"prompt": "x", "stream": True}}) == ["data: [DONE]\n\n"]
    assert made.cl_socket.pieces == ["data: a\n\n", "data: b\n\n"]  # type: ignore[attr-defined]
    assert ask(handler, context(tmp_path, CONFIG, url_path="v1/chat/completions"), {"data": {"messages": ["hi"]}}) == [
        {"chat": ["hi"]}
    ]
    assert ask(handler, context(tmp_path, CONFIG, url_path="v1/models"), {"body": bytearray(b"{}")}) == [["m"]]
    with pytest.raises(Exception, match="Unknown API endpoint: v2 : 404"):
        ask(handler, context(tmp_path, CONFIG, url_path="v2"), {"body": {}})


def test_vllm_takes_a_model_that_is_no_folder_by_its_name(vllm: Any, tmp_path: Path) -> None:
    handler = vllm.VLLMHandler()
    handler.initialize(context(tmp_path, {"handler": {"model_path": "org/model"}}))
    assert Engine.arguments.model == "org/model"
    with pytest.raises(AssertionError, match="please define model in vllm_engine_config or model_path"):
        vllm.VLLMHandler().initialize(context(tmp_path, {}))


def test_tensorrt_llm(packages: Any, tmp_path: Path) -> None:
    class Tokenizer:
        eos_token_id = 7
        pad_token_id = None

        def decode(self, ids: List[int]) -> str:
            return "<%d>" % ids[0]

    made: ClassVar[List[Any]] = []

    class Engine:
        def __init__(self, **named: Any) -> None:
            made.append(named)

        async def generate_async(self, prompt: str, streaming: bool, sampling_params: Any) -> Any:
            made.append(sampling_params)
            for ids in ([1], [1, 2]):
                yield types.SimpleNamespace(outputs=[types.SimpleNamespace(text=prompt + "!", token_ids=ids)])

    packages(
        tensorrt_llm={},
        tensorrt_llm__hlapi={"LLM": Engine, "KvCacheConfig": lambda **named: named, "SamplingParams": lambda **named: named},
        transformers={"AutoTokenizer": types.SimpleNamespace(from_pretrained=lambda folder, **named: Tokenizer())},
    )
    handler = importlib.import_module("ts.torch_handler.trt_llm_handler").TRTLLMHandler()
    config = {"handler": {"engine_dir": "e", "tokenizer_dir": "t", "kv_cache_config": {"a": 1}}}
    one = context(tmp_path, config)
    handler.initialize(one)
    assert (made[0]["model"], made[0]["kv_cache_config"], handler.tokenizer.pad_token_id) == ("e", {"a": 1}, 7)
    loop = asyncio.new_event_loop()
    assert loop.run_until_complete(handler.handle([{"body": {"prompt": "p", "temperature": 0.5}}], one)) == ["p!"]
    assert made[1] == {"end_id": 7, "pad_id": 7, "temperature": 0.5}
    assert loop.run_until_complete(handler.handle([{"body": {"prompt": "p", "streaming": True}}], one)) == [""]
    assert one.cl_socket.pieces == ['{"text": "<1>"}', '{"text": "<2>"}']  # type: ignore[attr-defined]
    loop.close()


@pytest.mark.torch
def test_dali(packages: Any, tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    pytest.importorskip("PIL")

    class Pipeline:
        said: ClassVar[Dict[str, Any]] = {}

        @classmethod
        def deserialize(cls, **named: Any) -> Pipeline:
            cls.said = named
            return cls()

        def run(self, source: List[Any]) -> Any:
            return (Images(source),)

    class Images(list):  # type: ignore[type-arg]
        def at(self, index: int) -> Any:
            return self[index][:3].astype("float32")

    packages(nvidia={}, nvidia__dali={}, nvidia__dali__pipeline={"Pipeline": Pipeline})
    module = importlib.import_module("ts.torch_handler.dali_image_classifier")
    (tmp_path / "p.dali").write_bytes(b"")
    torch.jit.script(torch.nn.Identity()).save(str(tmp_path / "m.pt"))
    (tmp_path / "index_to_name.json").write_text('{"0": "a", "1": "b", "2": "c"}')
    section = {"batch_size": 4, "num_threads": 2, "device_id": 0, "seed": 1, "pipeline_file": "p.dali"}
    one = context(tmp_path, {"dali": section})
    one.manifest = {"model": {"serializedFile": "m.pt"}}
    handler = module.DALIImageClassifier()
    handler.set_max_result_classes(2)
    handler.initialize(one)
    assert Pipeline.said["filename"] == str(tmp_path / "p.dali")
    assert vars(handler.pipeline) == {"_max_batch_size": 4, "_num_threads": 2, "_device_id": 0}
    answers = handler.handle([{"data": bytearray([1, 9, 5])}, {"body": bytes([9, 1, 5])}], one)
    assert [list(answer) for answer in answers] == [["b", "c"], ["a", "c"]]
