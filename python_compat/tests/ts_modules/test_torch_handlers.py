"""The built-in handlers with real torch and torchvision, against the same computation written out."""

from __future__ import annotations

import base64
import importlib.util
import io
import json
import sys
from pathlib import Path
from typing import Any, Dict, List, Optional

import pytest

pytestmark = pytest.mark.torch
if importlib.util.find_spec("torch") is None or importlib.util.find_spec("torchvision") is None:
    pytest.skip("torch or torchvision is not installed", allow_module_level=True)

import torch  # noqa: E402
import torchvision  # noqa: E402
from PIL import Image  # noqa: E402

from ts.context import Context, RequestProcessor  # noqa: E402
from ts.torch_handler import base_handler  # noqa: E402
from ts.torch_handler.base_handler import BaseHandler  # noqa: E402
from ts.torch_handler.densenet_handler import DenseNetHandler  # noqa: E402
from ts.torch_handler.image_classifier import ImageClassifier  # noqa: E402
from ts.torch_handler.image_segmenter import ImageSegmenter  # noqa: E402
from ts.torch_handler.object_detector import ObjectDetector  # noqa: E402
from ts.torch_handler.text_classifier import TextClassifier  # noqa: E402
from ts.torch_handler.vision_handler import VisionHandler  # noqa: E402

MODEL = '''
import torch
from torch import nn
class Net(nn.Module):
    """Ten classes of images of any size."""
    def __init__(self):
        super().__init__()
        torch.manual_seed(5)
        self.conv = nn.Conv2d(3, 4, 3, stride=2)
        self.out = nn.Linear(4, 10)
    def forward(self, x):
        return self.out(torch.relu(self.conv(x)).mean(dim=(2, 3)))
'''


class Metrics:
    def __init__(self) -> None:
        self.names: List[str] = []

    def add_time(self, name: str, value: float, *more: Any) -> None:
        self.names.append(name)


def context(folder: Path, rows: int = 1, config: Any = None, limit: bool = True, headers: Any = None, **files: str) -> Context:
    made = Context("m", str(folder), {"model": dict(modelName="m", **files)}, 1, None, "0.12.0", limit, Metrics(), config or {})
    made.request_processor = [RequestProcessor(dict(headers or {"explain": "False"})) for _ in range(rows)]
    return made


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A model's folder with the network in its forms, and labels."""
    (tmp_path / "net_file.py").write_text(MODEL)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "net_file", raising=False)
    net = network(tmp_path)
    torch.save(net.state_dict(), str(tmp_path / "weights.pt"))
    torch.jit.script(net).save(str(tmp_path / "script.pt"))
    (tmp_path / "index_to_name.json").write_text(json.dumps({str(i): ["n%d" % i, "label %d" % i] for i in range(10)}))
    return tmp_path


def network(folder: Path) -> Any:
    spec = importlib.util.spec_from_file_location("some_net", str(folder / "net_file.py"))
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.Net().eval()


def picture(seed: int, size: Any = (300, 260)) -> bytes:
    generator = torch.Generator().manual_seed(seed)
    pixels = torch.randint(0, 256, (size[1], size[0], 3), generator=generator, dtype=torch.uint8)
    out = io.BytesIO()
    Image.fromarray(pixels.numpy()).save(out, "PNG")
    return out.getvalue()


def wanted_labels(folder: Path, picture: bytes, topk: int = 5) -> Dict[str, float]:
    t = torchvision.transforms
    image = Image.open(io.BytesIO(picture))
    tensor = t.functional.to_tensor(t.functional.center_crop(t.functional.resize(image, 256), [224, 224]))
    tensor = t.functional.normalize(tensor, [0.485, 0.456, 0.406], [0.229, 0.224, 0.225])
    with torch.no_grad():
        probabilities = network(folder)(tensor[None])[0].softmax(0)
    best = probabilities.sort(descending=True)
    return {"label %d" % i: p for p, i in zip(best.values[:topk].tolist(), best.indices[:topk].tolist())}


FORMS = [
    {"modelFile": "net_file.py", "serializedFile": "weights.pt"},
    {"serializedFile": "script.pt"},
    {"modelFile": "net_file.py"},
]


@pytest.mark.parametrize("files", FORMS, ids=["eager", "script", "eager without weights"])
def test_image_classifier(folder: Path, files: Dict[str, str]) -> None:
    handler = ImageClassifier()
    ctx = context(folder, 2, **files)
    handler.initialize(ctx)
    assert handler.initialized
    assert str(handler.get_device()) == handler.map_location == "cpu"
    pictures = [picture(1), picture(2)]
    answers = handler.handle([{"body": bytearray(pictures[0])}, {"data": base64.b64encode(pictures[1]).decode()}], ctx)
    for answer, data in zip(answers, pictures):
        wanted = wanted_labels(folder, data)
        assert list(answer) == list(wanted)
        assert list(answer.values()) == pytest.approx(list(wanted.values()), abs=1e-5)
    assert ctx.metrics.names == ["HandlerTime"]
    json.dumps(answers)


def test_image_classifier_settings(folder: Path) -> None:
    handler = ImageClassifier()
    ctx = context(folder, serializedFile="script.pt")
    handler.initialize(ctx)
    assert handler.get_max_result_classes() == 5
    handler.set_max_result_classes(2)
    assert len(handler.handle([{"body": picture(1)}], ctx)[0]) == 2
    handler.set_max_result_classes(11)
    with pytest.raises(RuntimeError):
        handler.handle([{"body": picture(1)}], ctx)
    assert ImageClassifier.topk == 5
    assert len(handler.handle([{"body": torch.zeros(3, 224, 224).tolist()}], _one(handler, ctx))[0]) == 1


def _one(handler: ImageClassifier, ctx: Context) -> Context:
    handler.set_max_result_classes(1)
    return ctx


def test_without_labels_classes_are_numbers(folder: Path) -> None:
    (folder / "index_to_name.json").unlink()
    handler = ImageClassifier()
    handler.initialize(context(folder, serializedFile="script.pt"))
    assert all(key.isdigit() for key in handler.handle([{"body": picture(1)}], context(folder))[0])


def test_subclasses_override_the_way_an_image_is_read(folder: Path) -> None:
    class Small(VisionHandler):
        image_processing = torchvision.transforms.Compose(
            [torchvision.transforms.Resize((8, 8)), torchvision.transforms.ToTensor()]
        )

        def postprocess(self, data: Any) -> Any:
            return data.argmax(dim=1).tolist()

    handler = Small()
    ctx = context(folder, 3, serializedFile="script.pt")
    handler.initialize(ctx)
    answers = handler.handle([{"body": picture(i)} for i in range(3)], ctx)
    tensors = torch.stack([Small.image_processing(Image.open(io.BytesIO(picture(i)))) for i in range(3)])
    assert answers == network(folder)(tensors).argmax(1).tolist()
    assert VisionHandler.preprocess(handler, [{"body": picture(1)}]).shape == (1, 3, 8, 8)
    with pytest.raises(AttributeError, match="image_processing"):
        VisionHandler().preprocess([{"body": picture(1)}])


@pytest.mark.parametrize(("limit", "wanted"), [(True, 99), (False, None)])
def test_the_limit_on_image_sizes(folder: Path, monkeypatch: pytest.MonkeyPatch, limit: bool, wanted: Optional[int]) -> None:
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 99)
    ImageClassifier().initialize(context(folder, limit=limit, serializedFile="script.pt"))
    assert wanted == Image.MAX_IMAGE_PIXELS


def test_captum_is_needed_for_explanations_only(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "captum", None)
    monkeypatch.setitem(sys.modules, "captum.attr", None)
    handler = ImageClassifier()
    handler.initialize(context(folder, serializedFile="script.pt"))
    assert handler.handle([{"body": picture(1)}], context(folder))
    with pytest.raises(ImportError, match="captum"):
        handler.handle([{"body": picture(1)}], context(folder, headers={"explain": "True"}))
    handler.ig = own = object()
    assert handler.ig is own


def test_explanations(folder: Path) -> None:
    captum = pytest.importorskip("captum.attr")
    handler = ImageClassifier()
    handler.initialize(context(folder, serializedFile="script.pt"))
    ctx = context(folder, headers={"explain": "True"})
    got = handler.handle([{"body": picture(1), "target": 3}], ctx)
    tensor = handler.preprocess([{"body": picture(1)}])
    wanted = captum.IntegratedGradients(handler.model).attribute(tensor, target=3, n_steps=15)
    assert torch.allclose(torch.tensor(got), wanted.float(), atol=1e-6)
    assert handler.explain is True


def test_description(folder: Path) -> None:
    class Described(BaseHandler):
        def describe_handle(self) -> Any:
            return {"inputs": 1}

    ctx = context(folder, headers={"describe": "True"})
    assert Described().handle([{}], ctx) == [{"inputs": 1}]
    assert BaseHandler().handle([{}], ctx) == [None]


def test_base_handler_takes_and_gives_lists(folder: Path) -> None:
    handler = BaseHandler()
    ctx = context(folder, serializedFile="script.pt", config={"handler": {"profile": True}})
    handler.initialize(ctx)
    data = torch.rand(2, 3, 9, 9)
    answers = handler.handle(data.tolist(), ctx)
    assert torch.allclose(torch.tensor(answers), network(folder)(data), atol=1e-6)
    assert ctx.metrics.names == ["ts_handler_preprocess", "ts_handler_inference", "ts_handler_postprocess", "HandlerTime"]


@pytest.mark.parametrize(
    ("files", "kind", "said"),
    [
        ({}, RuntimeError, "neither a modelFile nor a serializedFile"),
        ({"serializedFile": "weights.pth"}, RuntimeError, "No model weights could be loaded"),
        ({"serializedFile": "m.so"}, RuntimeError, "aot_compile"),
        ({"modelFile": "gone.py"}, RuntimeError, "Missing the model.py file"),
        ({"modelFile": "two.py"}, ValueError, "Expected only one class as model definition"),
        ({"serializedFile": "gone.pt"}, (ValueError, RuntimeError), "gone.pt"),
    ],
)
def test_what_cannot_be_loaded(folder: Path, files: Dict[str, str], kind: Any, said: str) -> None:
    (folder / "two.py").write_text("class A: pass\nclass B: pass\n")
    sys.modules.pop("two", None)
    with pytest.raises(kind, match=said):
        BaseHandler().initialize(context(folder, **files))


@pytest.mark.parametrize(
    ("pt2", "compiled"),
    [
        ({"compile": {"enable": True, "backend": "eager"}}, True),
        ({"compile": {"enable": False, "backend": "eager"}}, False),
        ({"compile": {"enable": True, "backend": "zebra"}}, False),
        ({"export": {"aot_compile": True}}, False),
        ("eager", True),
        ({"backend": "eager"}, True),
        ("zebra", False),
    ],
)
def test_compilation(folder: Path, pt2: Any, compiled: bool) -> None:
    if not base_handler.PT2_AVAILABLE:
        pytest.skip("this torch has no torch.compile")
    handler = BaseHandler()
    handler.initialize(context(folder, config={"pt2": pt2}, modelFile="net_file.py"))
    assert ("Optimized" in type(handler.model).__name__) is compiled
    if isinstance(pt2, dict) and "compile" in pt2 and compiled:
        assert "enable" not in pt2["compile"]
    assert len(handler.handle(torch.zeros(1, 3, 9, 9).tolist(), context(folder))[0]) == 10


def test_a_compiler_that_fails_leaves_the_model(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(model: Any, **options: Any) -> Any:
        raise RuntimeError("no compiler here")

    monkeypatch.setattr(torch, "compile", fail)
    handler = BaseHandler()
    handler.initialize(context(folder, config={"pt2": "inductor"}, modelFile="net_file.py"))
    assert type(handler.model).__name__ == "Net"


def test_globals_can_be_replaced(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert base_handler.torch is torch
    monkeypatch.setattr("ts.torch_handler.base_handler.PT2_AVAILABLE", False)
    handler = BaseHandler()
    handler.initialize(context(folder, config={"pt2": "eager"}, modelFile="net_file.py"))
    assert type(handler.model).__name__ == "Net"


def test_profiler(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ENABLE_TORCH_PROFILER", "1")
    handler = BaseHandler()
    handler.initialize(context(folder, serializedFile="script.pt"))
    traces: List[Any] = []
    handler.profiler_args = {"activities": [torch.profiler.ProfilerActivity.CPU], "on_trace_ready": traces.append}
    assert len(handler.handle(torch.zeros(1, 3, 9, 9).tolist(), context(folder))[0]) == 10
    assert len(traces) == 1
    assert {"preprocess", "inference", "postprocess"} <= {event.key for event in traces[0].key_averages()}


def test_object_detector() -> None:
    found = [
        {
            "boxes": torch.tensor([[0.0, 1, 2, 3], [4, 5, 6, 7], [8, 8, 9, 9]]),
            "labels": torch.tensor([1, 2, 1]),
            "scores": torch.tensor([0.75, 0.5, 0.25]),
        },
        {"boxes": torch.zeros(0, 4), "labels": torch.zeros(0, dtype=torch.int64), "scores": torch.zeros(0)},
    ]
    handler = ObjectDetector()
    handler.mapping = {"1": "cat", "2": "dog"}
    assert handler.postprocess(found) == [[{"cat": [0.0, 1, 2, 3], "score": 0.75}, {"dog": [4.0, 5, 6, 7], "score": 0.5}], []]
    handler.threshold = 0.6
    handler.mapping = None
    assert handler.postprocess(found) == [[{"1": [0.0, 1, 2, 3], "score": 0.75}], []]


def test_image_segmenter() -> None:
    scores = torch.tensor([[[[0.0, 2.0]], [[1.0, 0.0]]]])  # one image, two classes, 1 x 2 pixels
    (rows,) = ImageSegmenter().postprocess({"out": scores})
    high = [torch.tensor([0.0, 1.0]).softmax(0)[1].item(), torch.tensor([2.0, 0.0]).softmax(0)[0].item()]
    assert [pixel[0] for pixel in rows[0]] == [1.0, 0.0]
    assert [pixel[1] for pixel in rows[0]] == pytest.approx(high)


TEXT_MODEL = """
import torch
class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(1)
        self.embedding = torch.nn.EmbeddingBag(40, 8)
        self.out = torch.nn.Linear(8, 2)
    def forward(self, numbers, offsets):
        return self.out(self.embedding(numbers, offsets))
"""


@pytest.fixture
def text_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "text_net.py").write_text(TEXT_MODEL)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "text_net", raising=False)
    words = ["i", "would", "not", "go", "to", "the", "cafe"]
    vocabulary = {token: n for n, token in enumerate(words + [" ".join(pair) for pair in zip(words, words[1:])])}
    torch.save(vocabulary, str(tmp_path / "source_vocab.pt"))
    (tmp_path / "index_to_name.json").write_text('{"0": "no", "1": "yes"}')
    return tmp_path


def test_text_classifier(text_folder: Path) -> None:
    handler = TextClassifier()
    assert (handler.initialized, handler.lig, handler.source_vocab) == (None, None, None)
    handler.initialize(context(text_folder, modelFile="text_net.py"))
    assert handler.initialized is True
    text = "<p>I'd not go to the Caf\u00e9!</p>&nbsp;"
    for value in (bytearray(text.encode()), text):
        (answer,) = handler.handle([{"body": value}, {"body": b"only the first is read"}], context(text_folder))
        with torch.no_grad():
            wanted = handler.model(torch.arange(13), torch.tensor([0])).softmax(1)[0].tolist()
        assert answer == pytest.approx({"no": wanted[0], "yes": wanted[1]})
    with pytest.raises(KeyError):
        handler.handle([{"body": b"unknown words"}], context(text_folder))


def test_text_explanations(text_folder: Path) -> None:
    pytest.importorskip("captum")
    handler = TextClassifier()
    handler.initialize(context(text_folder, modelFile="text_net.py"))
    (answer,) = handler.handle([{"body": b"not go", "target": 1}], context(text_folder, headers={"explain": "True"}))
    assert answer["words"] == ["not", "go"]
    assert torch.tensor(answer["importances"]).shape == (1, 8), "one text, the embedding's size"


def test_text_without_vocabulary(text_folder: Path) -> None:
    (text_folder / "source_vocab.pt").unlink()
    with pytest.raises(Exception, match="Missing the source_vocab file"):
        TextClassifier().initialize(context(text_folder, modelFile="text_net.py"))


def test_text_helpers() -> None:
    handler = TextClassifier()
    assert handler._expand_contractions("Don't say 'shan't', I'm o'clock") == "Do not say shall not, I am of the clock"
    assert handler._remove_puncutation("a.b,c!") == handler._remove_punctuation("a.b,c!") == "abc"
    assert handler._remove_accented_characters("\u00e9\u00f1\u4f60") == "en"
    assert handler._remove_html_tags("<i>x</i>&lt;") == "x"
    assert handler.get_word_token(["\u0120a", "b"]) == ["a", "b"]


def test_densenet_handler(folder: Path) -> None:
    handler = DenseNetHandler()
    handler.initialize(context(folder, modelFile="net_file.py", serializedFile="weights.pt"))
    data = torch.rand(2, 3, 9, 9)
    rows = []
    for row in data:
        saved = io.BytesIO()
        torch.save(row.clone(), saved)
        rows.append({"body": saved.getvalue()})
    (answer,) = handler.handle(rows, context(folder))
    assert torch.allclose(answer, network(folder)(data), atol=1e-6)
    with pytest.raises(RuntimeError, match="Missing the model"):
        DenseNetHandler().initialize(context(folder, serializedFile="gone.pt"))


def test_a_tensor_is_answered_as_torch_saves_it() -> None:
    from flambeau.worker.encode import Encoder

    ctx = context(Path("/"))
    (answer,) = Encoder(0).results([torch.tensor([1.0, 2.0])], ctx, 1, False)
    assert answer.body[:2] == b"PK"
    assert torch.load(io.BytesIO(answer.body)).tolist() == [1.0, 2.0]
