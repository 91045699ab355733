"""Which entry point a handler's name leads to, and what is said when it leads to none."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Dict

import pytest
from workerkit import Session, body, make_model

CLASS = """
class H:
    def initialize(self, ctx): self.n = 0
    def handle(self, data, ctx):
        self.n += 1
        return ["%s %d" % (type(self).__name__, self.n)] * len(data)
"""
FUNCTION = """
calls = []
def handle(data, ctx):
    calls.append(data)
    if data is None:
        return None
    return [str(calls.count(None))] * len(data)
"""


def answer(session: Session) -> str:
    (result,) = session.run(body(b"x"))
    assert result.outcome == 0, result
    return result.body.decode()


def load_fails(session: Session, folder: Path, files: Dict[str, str], handler: str) -> str:
    failure = session.load(make_model(folder, files), handler)["failure"]
    assert failure["detail"]
    message: str = failure["message"]
    return message


@pytest.mark.parametrize("handler", ["h.py", "h", "some/where/h.py", "h:nothing_of_that_name", "h.py:H", "h:H"])
def test_class(session: Session, tmp_path: Path, handler: str) -> None:
    assert session.load(make_model(tmp_path, {"h.py": CLASS}), handler) == {"features": []}
    assert answer(session) == "H 1"
    assert answer(session) == "H 2"


@pytest.mark.parametrize("handler", ["h.py", "h", "h:handle", "h.py:handle"])
def test_module_function_is_called_once_at_load(session: Session, tmp_path: Path, handler: str) -> None:
    assert session.load(make_model(tmp_path, {"h.py": FUNCTION}), handler) == {"features": []}
    assert answer(session) == "1"


def test_function_by_its_name(session: Session, tmp_path: Path) -> None:
    files = {
        "h.py": FUNCTION.replace("def handle", "def serve_it") + "def handle(data, ctx): raise RuntimeError('not this one')\n"
    }
    assert session.load(make_model(tmp_path, files), "h.py:serve_it") == {"features": []}
    assert answer(session) == "1"


def test_a_function_is_preferred_to_a_class(session: Session, tmp_path: Path) -> None:
    session.load(make_model(tmp_path, {"h.py": CLASS + FUNCTION}), "h.py")
    assert answer(session) == "1"


def test_a_helper_class_is_no_handler(session: Session, tmp_path: Path) -> None:
    files = {"h.py": "import enum\nclass Cfg: pass\nclass A(enum.Enum): X = 1\nclass E(Exception): pass\n" + CLASS}
    assert session.load(make_model(tmp_path, files), "h.py") == {"features": []}
    assert answer(session) == "H 1"


def test_an_imported_class_is_no_handler(session: Session, tmp_path: Path) -> None:
    files = {"h.py": "from other import Other\n" + CLASS, "other.py": CLASS.replace("class H", "class Other")}
    session.load(make_model(tmp_path, files), "h.py")
    assert answer(session) == "H 1"


def test_two_handler_classes_are_both_named(session: Session, tmp_path: Path) -> None:
    message = load_fails(session, tmp_path, {"h.py": CLASS + CLASS.replace("class H", "class Other")}, "h.py")
    assert "H and Other" in message
    assert "'h.py:Other'" in message
    assert "h.py" in message


def test_one_of_two_handler_classes_can_be_named(session: Session, tmp_path: Path) -> None:
    session.load(make_model(tmp_path, {"h.py": CLASS + CLASS.replace("class H", "class Other")}), "h.py:Other")
    assert answer(session) == "Other 1"


def test_handle_may_be_set_in_the_constructor(session: Session, tmp_path: Path) -> None:
    code = """
class H:
    def __init__(self): self.handle = lambda d, c: ['own']
    def initialize(self, ctx): self.handle = None
"""
    assert session.load(make_model(tmp_path, {"h.py": code}), "h.py") == {"features": []}
    assert answer(session) == "own", "the entry point is taken before initialize"


@pytest.mark.parametrize(
    ("code", "said"),
    [
        ("x = 1\n", "neither a function 'handle' nor a class"),
        ("class A: pass\nclass B: pass\n", "classes: A, B"),
        ("class A:\n    def initialize(self, ctx): pass\n", "Expect handle method in class"),
        ("class A:\n    def handle(self, d, c): pass\n", "no initialize method"),
        ("class A:\n    def __init__(self, x): pass\n    def handle(self, d, c): pass\n", "TypeError: "),
        ("def handle(data, ctx):\n    return len(data)\n", "(h.py:2)"),
        ("import nowhere_to_be_found\n", "ModuleNotFoundError: No module named 'nowhere_to_be_found' (h.py:1)"),
        ("from os import nothing_there\n", "ImportError: cannot import name 'nothing_there'"),
        ("import helper\n", "No module named 'missing_one' (helper.py:2)"),
        ("def handle(:\n", "SyntaxError: "),
        ("1 / 0\n", "ZeroDivisionError: division by zero (h.py:1)"),
        ("raise ValueError('two\\nlines')\n", "ValueError: two lines (h.py:1)"),
        ("raise KeyError\n", "KeyError (h.py:1)"),
        ("import sys\nsys.exit(3)\n", "ended the process with sys.exit(3)"),
    ],
)
def test_what_a_load_that_fails_says(session: Session, tmp_path: Path, code: str, said: str) -> None:
    try:
        message = load_fails(session, tmp_path, {"h.py": code, "helper.py": "# a comment\nimport missing_one\n"}, "h.py")
    except SystemExit:  # raised after the answer
        import json

        message = json.loads(session.transport.given[-1][1])["failure"]["message"]
    assert said in message
    assert "\n" not in message


@pytest.mark.parametrize(
    ("code", "out_of_memory"),
    [
        ("raise MemoryError\n", True),
        ("raise RuntimeError('CUDA out of memory')\n", True),
        ("raise ValueError('CUDA')\n", False),
        ("raise RuntimeError('x')\n", False),
    ],
)
def test_a_load_that_runs_out_of_memory(session: Session, tmp_path: Path, code: str, out_of_memory: bool) -> None:
    failure = session.load(make_model(tmp_path, {"h.py": code}), "h.py")["failure"]
    assert failure["out_of_memory"] is out_of_memory


def test_the_traceback_of_a_failed_load_is_logged_and_has_no_line_of_ours(
    session: Session, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    failure = session.load(make_model(tmp_path, {"h.py": "def f():\n    1/0\nf()\n"}), "h.py")["failure"]
    assert failure["detail"] in caplog.text
    assert failure["detail"].count('h.py", line') == 2
    assert "model.py" not in failure["detail"]


def test_no_handler_of_that_name(session: Session, tmp_path: Path) -> None:
    message = load_fails(session, tmp_path, {}, "nothing.py")
    assert "there is no module 'nothing' in the model's folder" in message
    assert "built-in" in message
    assert load_fails(session, tmp_path, {}, "").startswith("HandlerError: the model names no handler")


def test_a_builtin_handler_that_needs_torch_says_so(session: Session, tmp_path: Path) -> None:
    if importlib.util.find_spec("torch"):
        pytest.skip("torch is installed")
    message = load_fails(session, tmp_path, {}, "image_classifier")
    assert message.startswith("ModuleNotFoundError: No module named 'torch'")


def test_a_handler_named_like_a_loaded_module_is_run(session: Session, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    import json

    session.load(make_model(tmp_path, {"json.py": CLASS}), "json.py")
    assert answer(session) == "H 1"
    assert "json.py in the model's folder is hidden" in caplog.text
    import json as still

    assert still is json


@pytest.mark.parametrize(
    ("envelope", "sent", "got"),
    [
        ("body", b'{"a":1}', b'{\n  "a": 1\n}'),
        ("json", b'{"instances":[1,2]}', b'{"predictions": [1, 2]}'),
        ("kserve", b'{"instances":[1,2]}', b'{\n  "predictions": [\n    1,\n    2\n  ]\n}'),
    ],
)
def test_envelope(session: Session, tmp_path: Path, envelope: str, sent: bytes, got: bytes) -> None:
    code = "def handle(data, ctx):\n    assert data is None or isinstance(data, list)\n    return data\n"
    assert session.load(make_model(tmp_path, {"h.py": code}), "h.py", envelope=envelope) == {"features": []}
    (result,) = session.run(body(sent, "application/json"))
    assert result.body == got


def test_an_unknown_envelope(session: Session, tmp_path: Path) -> None:
    model = make_model(tmp_path, {"h.py": CLASS})
    assert "request_envelope.nope" in session.load(model, "h.py", envelope="nope")["failure"]["message"]


def test_manifest_and_configuration_reach_the_context(session: Session, tmp_path: Path) -> None:
    code = """
import os
def handle(data, ctx):
    if data is None:
        return None
    return [dict(m=ctx.manifest["model"]["handler"], y=ctx.model_yaml_config, p=ctx.system_properties, n=ctx.model_name,
                 ids=ctx.request_ids, cwd=os.getcwd())]
"""
    import json

    config = "minWorkers: 1\nhandler:\n  profile: true\n  names: [a, 'b']\n"
    model = make_model(tmp_path, {"h.py": code, "c.yaml": config}, handler="h.py", configFile="c.yaml")
    assert session.load(model, "h.py", gpu=3, batch_size=7, limit_max_image_pixels=False, model_name="nom") == {"features": []}
    got = json.loads(answer(session))
    assert got == {
        "m": "h.py",
        "y": {"minWorkers": 1, "handler": {"profile": True, "names": ["a", "b"]}},
        "p": {
            "model_dir": str(tmp_path),
            "gpu_id": 3,
            "batch_size": 7,
            "server_name": "MMS",
            "server_version": "0.12.0",
            "limit_max_image_pixels": False,
        },
        "n": "nom",
        "ids": {"0": "id-0"},
        "cwd": str(tmp_path),
    }


def test_a_model_without_manifest(session: Session, tmp_path: Path) -> None:
    code = "def handle(data, ctx):\n    return [[ctx.manifest, ctx.model_yaml_config, ctx.system_properties['gpu_id']]]\n"
    session.load(make_model(tmp_path, {"h.py": code}), "h.py")
    assert answer(session).split() == ["[", "null,", "{},", "null", "]"]


@pytest.mark.parametrize("config", ["a: [unclosed\n", "a: 1\n b: 2\n"])
def test_a_bad_configuration_fails_the_load(session: Session, tmp_path: Path, config: str) -> None:
    model = make_model(tmp_path, {"h.py": CLASS, "c.yaml": config}, handler="h.py", configFile="c.yaml")
    assert "failure" in session.load(model, "h.py")
