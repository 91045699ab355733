"""The archivers make what TorchServe's made of the same command lines, but for the differences listed here."""

import json
import os
import sys
from pathlib import Path

import archiver_cases
import pytest

GOLDEN = json.loads((Path(__file__).parent / "golden.json").read_text(encoding="utf-8"))

# Here TorchServe's archivers fail, or lose the file, although the command line says clearly what is meant.
BETTER = {
    "handler with ending and function": ("m.mar!svc.py", '"handler": "svc.py:handle"'),
    "blank after comma": ("m.mar!b.txt", '"handler": "svc.py"'),
    "brackets in a name": ("m.mar!dataset[1].txt", '"handler": "svc.py"'),
    "native with ending": ("m.mar!lib.so", '"handler": "lib.so"'),
    "workflow:blank after comma": ("w.war!b.txt", '"handler": "svc.py"'),
}

COMMANDS = {
    "model": [sys.executable, "-m", "torch_model_archiver"],
    "workflow": [sys.executable, "-m", "torch_workflow_archiver"],
}


def run(name, folder):
    kind = "workflow" if name.startswith(archiver_cases.WORKFLOW) else "model"
    return archiver_cases.run_case(COMMANDS[kind], archiver_cases.CASES[name], folder)


def test_every_case_is_recorded():
    assert sorted(GOLDEN) == sorted(archiver_cases.CASES)


@pytest.mark.parametrize("name", sorted(set(archiver_cases.CASES) - set(BETTER)))
def test_same_result(name, tmp_path):
    result = run(name, tmp_path)
    assert (result["exit"], result["made"]) == (GOLDEN[name]["exit"], GOLDEN[name]["made"]), result["stderr"]
    assert os.listdir(str(tmp_path / "tmp")) == []
    assert "Traceback" not in result["stderr"]
    if result["exit"] == 1:
        assert result["stderr"].startswith("ERROR - ")


@pytest.mark.parametrize("name", sorted(BETTER))
def test_better_result(name, tmp_path):
    member, handler = BETTER[name]
    assert member not in GOLDEN[name]["made"]
    result = run(name, tmp_path)
    assert result["exit"] == 0, result["stderr"]
    assert result["stderr"] == ""
    assert member in result["made"]
    manifest = next(text for path, (_, _, text) in result["made"].items() if path.endswith("MANIFEST.json"))
    assert handler in manifest


@pytest.mark.parametrize(
    "name, words",
    [
        ("handler missing", ["--handler nope.py", "/work/nope.py", "image_classifier"]),
        ("handler not built in", ["--handler text_handler", "/work/text_handler.py"]),
        ("extra file missing", ["--extra-files nope.txt", "/work/nope.txt", "check the path"]),
        ("serialized file missing", ["--serialized-file nope.pt", "/work/nope.pt"]),
        ("serialized file a folder", ["--serialized-file x is a folder"]),
        ("config missing", ["--config-file nope"]),
        ("requirements missing", ["--requirements-file nope"]),
        ("model file missing", ["--model-file nope.py"]),
        ("name with blank", ["--model-name 'a b'", "letters, digits"]),
        ("export path a file", ["--export-path file is not a directory", "Give the folder"]),
        ("export path missing", ["--export-path nope is not a directory", "mkdir -p", "/work/nope"]),
        ("already there", ["taken/m.mar already exists", "--force (-f)"]),
        ("folders that collide", ["y/sub", "x/sub", "Rename"]),
        ("link to nothing deeper", ["broken/sub/dangling is a link to nothing"]),
        ("pipe", ["pipe is neither a file nor a folder"]),
        ("workflow:no handler", ["--handler", "Python file"]),
        ("workflow:already there", ["taken/w.war already exists", "--force (-f)"]),
        ("workflow:export path missing", ["mkdir -p"]),
        ("workflow:spec missing", ["--spec-file nope"]),
        ("workflow:name with blank", ["--workflow-name 'a b'"]),
    ],
)
def test_refusals_say_what_and_where(name, words, tmp_path):
    result = run(name, tmp_path)
    assert result["exit"] == 1
    for word in words:
        assert word in result["stderr"]


@pytest.mark.parametrize(
    "name, words",
    [
        ("replaced", "Overwriting taken/m.mar"),
        ("wildcard without match", "the wildcard *.nope matches nothing"),
        ("one name twice", "same/a.txt replaces a.txt"),
        ("link to nothing in a folder", "broken_top/dangling"),
        ("manifest among the inputs", "a manifest of its own"),
        ("workflow:replaced", "Overwriting taken/w.war"),
    ],
)
def test_warnings(name, words, tmp_path):
    result = run(name, tmp_path)
    assert result["exit"] == 0
    assert result["stderr"].startswith("WARNING - ")
    assert words in result["stderr"]
