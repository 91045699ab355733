"""What the server's answer says about a model that does not load: the reason, the user's line, and what to do."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Dict

import pytest
from workerkit import Session, make_model

INSTALL = "install_py_dep_per_model=true"


def failure(session: Session, folder: Path, files: Dict[str, str], handler: str = "h.py") -> str:
    message: str = session.load(make_model(folder, files), handler)["failure"]["message"]
    return message


def manifest(requirements: str) -> Dict[str, str]:
    return {"MAR-INF/MANIFEST.json": json.dumps({"model": {"requirementsFile": requirements}})}


def test_missing_module_with_another_pip_name(session: Session, tmp_path: Path) -> None:
    message = failure(session, tmp_path, {"h.py": "\n\nimport pythonjsonlogger.x\n"})
    assert message.startswith("ModuleNotFoundError: No module named 'pythonjsonlogger' (h.py:3): ")
    assert (
        "pythonjsonlogger comes with the pip package python-json-logger: add python-json-logger to a requirements.txt" in message
    )
    assert INSTALL in message
    assert sys.executable in message


def test_missing_module_that_may_be_a_file(session: Session, tmp_path: Path) -> None:
    message = failure(session, tmp_path, {"h.py": "import zz_helpers\n"})
    assert (
        "(h.py:1): if zz_helpers is a file of yours, add it to the archive by --extra-files; if it is a pip package, " in message
    )


def test_missing_module_that_is_in_a_folder(session: Session, tmp_path: Path) -> None:
    message = failure(session, tmp_path, {"h.py": "import zz_helpers\n", "lib/zz_helpers.py": ""})
    assert "the archive has it as lib/zz_helpers.py, and only its top folder is searched" in message


def test_missing_submodule_of_a_package_that_is_there(session: Session, tmp_path: Path) -> None:
    message = failure(session, tmp_path, {"h.py": "import email.zz_nothing\n"})
    assert "email itself is there (" in message
    assert INSTALL not in message


def test_requirements_that_are_not_installed(session: Session, tmp_path: Path) -> None:
    message = failure(session, tmp_path, {"h.py": "import zz_helpers\n", **manifest("reqs.txt")})
    assert "start the server with %s, so that the model's reqs.txt is installed" % INSTALL in message


def test_requirements_that_name_the_package(session: Session, tmp_path: Path) -> None:
    files = {"h.py": "import pythonjsonlogger\n", "reqs.txt": "numpy\n  Python_JSON.logger >= 2\n", **manifest("reqs.txt")}
    message = failure(session, tmp_path, files)
    assert message.endswith(
        "(h.py:1): it is in the model's requirements: start the server with %s, so that the model's reqs.txt is installed, "
        "or install it for %s" % (INSTALL, sys.executable)
    )


def test_requirements_that_are_installed(session: Session, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FLAMBEAU_REQUIREMENTS_INSTALLED", "true")
    message = failure(session, tmp_path, {"h.py": "import zz_helpers\n", **manifest("reqs.txt")})
    assert "add zz_helpers to the model's requirements file" in message
    assert INSTALL not in message


def test_missing_library_of_the_system(session: Session, tmp_path: Path) -> None:
    text = "libGL.so.1: cannot open shared object file: No such file or directory"
    message = failure(session, tmp_path, {"h.py": "raise ImportError(%r)\n" % text})
    assert message.endswith(
        "(h.py:1): libGL.so.1 is a library of the system; the pip package opencv-python-headless does without it"
    )


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("open('w.bin')", "the archive has no such file, it has h.py, notes/a.txt; add it by --serialized-file or --extra-files"),
        ("open('a.txt')", "the archive has it as notes/a.txt: take the folder from context.system_properties['model_dir']"),
        ("open('/nowhere/w.bin')", "it is not a path in the archive"),
        ("import os; raise ValueError('The provided filename %s/w.pt does not exist' % os.path.realpath('.'))", "it has h.py"),
    ],
)
def test_missing_file(session: Session, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, line: str, says: str) -> None:
    folder = make_model(tmp_path, {"h.py": "def handle(data, context):\n    %s\n" % line, "notes/a.txt": "x"})
    monkeypatch.chdir(folder)
    message = session.load(folder, "h.py")["failure"]["message"]
    assert "(h.py:2): " in message
    assert says in message


def test_missing_handler(session: Session, tmp_path: Path) -> None:
    message = failure(session, tmp_path, {"other.py": "", "data.txt": ""})
    assert "there is no module 'h' in the model's folder" in message
    assert message.endswith("the archive's Python files are other.py")


def test_wrong_class(session: Session, tmp_path: Path) -> None:
    message = failure(session, tmp_path, {"h.py": "class A:\n    def initialize(self, context): pass\n"}, "h.py:B")
    assert "there is no 'B' in h, class A is used: Expect handle method in class <class 'h.A'>" in message


def test_other_errors_have_no_advice(session: Session, tmp_path: Path) -> None:
    assert failure(session, tmp_path, {"h.py": "raise ValueError('no')\n"}) == "ValueError: no (h.py:1)"
