"""The example's handler against the package that the model comes from, and against answers written down once."""

import importlib.util
import pathlib
import types

import magika
import pytest

HERE = pathlib.Path(__file__).parent
RIGHT = {"tide.py": ("python", 0.999600), "tide.go.txt": ("go", 0.999979), "tide.json": ("json", 0.897123)}
TOLERANCE = 1e-4  # batches differ from single runs in the fifth digit


@pytest.fixture(scope="module")
def handler():
    """The handler as a worker would have it after its load."""
    spec = importlib.util.spec_from_file_location("magika_handler", HERE / "handler.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    made = module.FileTypeHandler()
    folder = pathlib.Path(magika.__file__).parent / "models/standard_v3_3"
    made.initialize(
        types.SimpleNamespace(system_properties={"model_dir": str(folder)}, manifest={"model": {"serializedFile": "model.onnx"}})
    )
    return made


def sample(name):
    return bytearray((HERE / "samples" / name).read_bytes())


def test_batch_gives_the_right_answers_in_order(handler):
    answers = handler.handle([{"body": sample(name)} for name in RIGHT], None)
    for answer, (label, score) in zip(answers, RIGHT.values()):
        assert answer["label"] == label
        assert answer["score"] == pytest.approx(score, abs=TOLERANCE)


@pytest.mark.parametrize(
    "content",
    [
        pytest.param(b"\n\n   \t" + bytes(sample("tide.py")) + b"  \n\n", id="white space around"),
        pytest.param(bytes(sample("tide.json")) * 12, id="longer than a block"),
        pytest.param(b" " * 3000 + bytes(sample("tide.go.txt")) * 9, id="most of a block is white space"),
        pytest.param(bytes(range(256)) * 32, id="binary"),
        pytest.param("# Über uns\n\nEin *kurzer* Absatz.\n".encode(), id="not ascii"),
    ],
)
def test_is_what_the_package_itself_says(handler, content):
    expected = magika.Magika().identify_bytes(content)
    answer = handler.handle([{"body": bytearray(content)}], None)[0]
    assert answer["label"] == str(expected.dl.label)
    assert answer["score"] == pytest.approx(expected.score, abs=TOLERANCE)


def test_takes_every_form_that_a_row_can_have(handler):
    text = sample("tide.py")
    rows = [{"body": text}, {"data": text}, {"body": text.decode()}, {"data": bytes(text)}]
    assert {answer["label"] for answer in handler.handle(rows, None)} == {"python"}
    assert (
        handler.handle([{"body": {"stations": [{"name": "Eastmole", "next": ["03:12", "09:24"]}] * 4}}], None)[0]["label"]
        == "json"
    )
    assert len(handler.handle([{"body": b""}, {}], None)) == 2
