"""What the program says about archives' code, run as the server runs it; and that it runs none of that code."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any, Dict, List, Optional, Tuple

import pytest

import flambeau
from flambeau.inspection.resolver import Resolver

PACKAGES = os.path.dirname(os.path.dirname(os.path.abspath(flambeau.__file__)))
SCRIPT = os.path.join(PACKAGES, "flambeau", "inspection", "__main__.py")
HANDLER = "def handle(data, context):\n    return data\n"
LIMIT = 60  # seconds


def write(folder: Path, files: Dict[str, str]) -> None:
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")


def inspect(folder: Path, handler: str = "handler.py", env: Optional[Dict[str, str]] = None, **more: Any) -> Dict[str, Any]:
    question = {"folder": str(folder), "handler": handler, **more}
    done = subprocess.run(
        [sys.executable, "-B", SCRIPT],
        input=json.dumps(question).encode("utf-8"),
        capture_output=True,
        cwd="/",
        env={**os.environ, **(env or {})},
        timeout=LIMIT,
        check=False,
    )
    assert done.returncode == 0, done.stderr.decode("utf-8", "replace")
    answer: Dict[str, Any] = json.loads(done.stdout.decode("utf-8"))
    return answer


def imports(answer: Dict[str, Any]) -> List[Tuple[str, int, str, str, bool]]:
    return [(m["file"], m["line"], m["module"], m["name"], m["certain"]) for m in answer["missing"]]


def codes(answer: Dict[str, Any]) -> List[Tuple[str, str, int, bool]]:
    return [(p["code"], p["file"], p["line"], p["error"]) for p in answer["problems"]]


# Each with what is missing: line, module, name, whether it is certain.
IMPORTS = {
    "plain": ("import os, absent_a\n", [(1, "absent_a", "absent_a", True)]),
    "dotted": ("import absent_a.b.c\n", [(1, "absent_a.b.c", "absent_a", True)]),
    "sub-module": ("import json.absent\n", [(1, "json.absent", "json.absent", True)]),
    "no package": ("import string.absent\n", [(1, "string.absent", "string.absent", True)]),
    "name": ("from json import loads, absent\n", [(1, "json", "absent", True)]),
    "names that are there": (
        "from os import path, getcwd, PathLike\nfrom json import decoder\nimport os.path, xml.etree.ElementTree\n",
        [],
    ),
    "names made at run time": ("from re import IGNORECASE\nfrom socket import AF_INET\nfrom signal import SIGTERM\n", []),
    "guarded": ("try:\n    import absent_a\nexcept ImportError:\n    absent_a = None\n", []),
    "guarded, the fallback is there": ("try:\n    import absent_a as x\nexcept ImportError:\n    import json as x\n", []),
    "guarded, the fallback is missing": (
        "try:\n    import absent_a\nexcept ModuleNotFoundError:\n    import absent_b\n",
        [(4, "absent_b", "absent_b", True)],
    ),
    "guarded and raised again": (
        "try:\n    import absent_a\nexcept ImportError as e:\n    raise RuntimeError() from e\n",
        [(2, "absent_a", "absent_a", True)],
    ),
    "not guarded by another exception": (
        "try:\n    import absent_a\nexcept KeyError:\n    pass\n",
        [(2, "absent_a", "absent_a", True)],
    ),
    "guarded, and what follows it": ("try:\n    import absent_a\nexcept Exception:\n    pass\nelse:\n    import absent_b\n", []),
    "finally": ("try:\n    pass\nfinally:\n    import absent_a\n", [(4, "absent_a", "absent_a", True)]),
    "suppressed": ("import contextlib\nwith contextlib.suppress(ImportError):\n    import absent_a\n", []),
    "type checking": ("import typing\nif typing.TYPE_CHECKING:\n    import absent_a\n", []),
    "not type checking": (
        "from typing import TYPE_CHECKING\nif not TYPE_CHECKING:\n    import absent_a\n",
        [(3, "absent_a", "absent_a", True)],
    ),
    "another system": (
        "import sys\nif sys.platform == 'win32':\n    import absent_a\nelse:\n    import absent_b\n",
        [(5, "absent_b", "absent_b", True)],
    ),
    "another version": ("import sys\nif sys.version_info < (3, 0):\n    import absent_a\n", []),
    "main": ("if __name__ == '__main__':\n    import absent_a\n", []),
    "condition": ("import os\nif os.environ.get('X'):\n    import absent_a\n", [(3, "absent_a", "absent_a", False)]),
    "function": ("def f():\n    def g():\n        import absent_a\n", [(3, "absent_a", "absent_a", False)]),
    "class body": ("class C:\n    import absent_a\n", [(2, "absent_a", "absent_a", True)]),
    "star": ("from absent_a import *\n", [(1, "absent_a", "absent_a", True)]),
    "future": ("from __future__ import annotations\n", []),
    "our own": ("from ts.torch_handler.base_handler import BaseHandler\nfrom ts.context import Context\n", []),
    "our own, missing": (
        "from ts.context import Kontext\nimport ts.absent\n",
        [(1, "ts.context", "Kontext", True), (2, "ts.absent", "ts.absent", True)],
    ),
    "local": ("import helper\nfrom helper import there, absent\n", [(2, "helper", "absent", True)]),
    "behind a local module": ("import wanting\n", [("wanting.py", 2, "absent_b", "absent_b", True)]),
    "behind a guarded local module": ("try:\n    import wanting\nexcept ImportError:\n    pass\n", []),
    "behind a package": ("from package.deep import mod\n", [("package/deep/mod.py", 3, "package.other", "absent", True)]),
    "through a star": ("from starred import there, absent\n", [(1, "starred", "absent", True)]),
    "any name": ("from lazy import anything\n", []),
    "a sub-module of a module": ("import helper.sub\n", [(1, "helper.sub", "helper.sub", True)]),
    "a folder without __init__": ("from bare import inside, absent\nimport bare.inside\n", [(1, "bare", "absent", True)]),
}
LOCAL = {
    "helper.py": "def there(): pass\n",
    "wanting.py": "import json\nimport absent_b\n",
    "package/__init__.py": "",
    "package/other.py": "x = 1\n",
    "package/deep/__init__.py": "",
    "package/deep/mod.py": "from .. import other\nfrom ..other import x\nfrom ..other import absent\n",
    "starred.py": "from helper import *\n",
    "lazy.py": "def __getattr__(name):\n    return name\n",
    "bare/inside.py": "",
}


@pytest.mark.parametrize("name", IMPORTS)
def test_imports(tmp_path: Path, name: str) -> None:
    code, expected = IMPORTS[name]
    write(tmp_path, {**LOCAL, "handler.py": code + HANDLER})
    wanted = [one if isinstance(one[0], str) else ("handler.py", *one) for one in expected]
    answer = inspect(tmp_path)
    assert imports(answer) == wanted
    assert answer["problems"] == []


def test_relative_import_at_the_top(tmp_path: Path) -> None:
    write(tmp_path, {"handler.py": "from .helper import there\n" + HANDLER, "helper.py": "there = 1\n"})
    assert codes(inspect(tmp_path)) == [("import_relative", "handler.py", 1, True)]


def test_a_function_that_imports_says_which(tmp_path: Path) -> None:
    write(
        tmp_path,
        {"handler.py": "class H:\n    def initialize(self, c):\n        import cv2_absent\n    def handle(self, d, c): pass\n"},
    )
    (missing,) = inspect(tmp_path)["missing"]
    assert (missing["function"], missing["certain"], missing["line"]) == ("initialize", False, 3)


def test_pip_names_and_other_places(tmp_path: Path) -> None:
    name = "fast.cpython-36m-x86_64-linux-gnu.so"
    write(tmp_path, {"handler.py": "import Levenshtein, fast, tools\n" + HANDLER, name: "", "src/tools.py": ""})
    found = {m["module"]: m for m in inspect(tmp_path)["missing"]}
    assert found["fast"]["other_abi"] == [name]
    assert found["tools"]["elsewhere"] == ["src/tools.py"]
    if "Levenshtein" in found:
        assert found["Levenshtein"]["pip"] == "python-Levenshtein"


HANDLERS = {
    "none": ("x = 1\n", "handler.py", [("handler_no_entry", "handler.py", 0, True)]),
    "no handle": ("class A:\n    def initialize(self, c): pass\n", "handler.py", [("handler_incomplete", "handler.py", 1, True)]),
    "no initialize": (
        "class A:\n    def handle(self, d, c): pass\n",
        "handler.py",
        [("handler_incomplete", "handler.py", 1, True)],
    ),
    "two": (
        "class A:\n    def initialize(self, c): pass\n    def handle(self, d, c): pass\nclass B(A): pass\n",
        "handler.py",
        [("handler_ambiguous", "handler.py", 4, True)],
    ),
    "the one that is named": (
        "class A:\n    def initialize(self, c): pass\n    def handle(self, d, c): pass\nclass B(A): pass\n",
        "handler.py:B",
        [],
    ),
    "one of two": (
        "import enum\nclass E(enum.Enum): A = 1\nclass H:\n    def initialize(self, c): pass\n    def handle(self, d, c): pass\n",
        "handler.py",
        [],
    ),
    "ignored function": (
        "class A:\n    def initialize(self, c): pass\n    def handle(self, d, c): pass\n",
        "handler:absent",
        [("handler_function_ignored", "handler.py", 1, False)],
    ),
    "function": ("def infer(data, context): pass\n", "handler:infer", []),
    "imported function": ("from helper import handle\n", "handler.py", []),
    "base": ("from ts.torch_handler.vision_handler import VisionHandler as V\nclass H(V): pass\n", "handler.py", []),
    "local base": ("from helper import Base\nclass H(Base):\n    def initialize(self, c): pass\n", "handler.py", []),
    "unknown base": ("import absent\nclass H(absent.Base): pass\n", "handler.py", []),
    "attribute": (
        "class H:\n    def initialize(self, c):\n        self.x = 1\n    def __init__(self):\n        self.handle = print\n",
        "handler.py",
        [],
    ),
    "assigned": ("import functools\nhandle = functools.partial(print)\n", "handler.py", []),
    "made": ("H = type('H', (), {})\n", "handler.py", []),
    "missing": ("", "absent.py", [("handler_missing", "MAR-INF/MANIFEST.json", 0, True)]),
    "built-in with a function": ("", "image_classifier:handle", [("handler_missing", "MAR-INF/MANIFEST.json", 0, True)]),
    "syntax": ("def handle(data, context)\n    return data\n", "handler.py", [("syntax_error", "handler.py", 1, True)]),
    "return at the top": ("def handle(d, c): pass\nreturn 1\n", "handler.py", [("syntax_error", "handler.py", 2, True)]),
    "null byte": ("x = '\0'\n", "handler.py", [("syntax_error", "handler.py", 0, True)]),
}


@pytest.mark.parametrize("name", HANDLERS)
def test_handlers(tmp_path: Path, name: str) -> None:
    code, handler, expected = HANDLERS[name]
    helper = "def handle(data, context): pass\nclass Base:\n    def handle(self, d, c): pass\n"
    write(tmp_path, {"handler.py": code, "helper.py": helper})
    found = codes(inspect(tmp_path, handler))
    if name == "null byte":
        found = [(code, file, 0, error) for code, file, _, error in found]
    assert found == expected


def test_handlers_in_folders(tmp_path: Path) -> None:
    write(tmp_path, {"sub/service.py": "import beside\nimport absent_a\n" + HANDLER, "sub/beside.py": "", "service.py": HANDLER})
    assert imports(inspect(tmp_path, "sub/service.py:handle")) == []  # the file at the top has the name
    (tmp_path / "service.py").unlink()
    assert imports(inspect(tmp_path, "sub/service:handle")) == [("sub/service.py", 2, "absent_a", "absent_a", True)]
    assert [p["code"] for p in inspect(tmp_path, "sub/service.py")["problems"]] == ["handler_missing"]


def test_built_in_handlers_need_what_they_import(tmp_path: Path) -> None:
    answer = inspect(tmp_path, "image_classifier")
    assert answer["built_in"] == "image_classifier"
    assert answer["base"] == {"initialize": True, "torchscript": True, "pickled": True}
    have = {name for name in ("torch", "torchvision", "PIL") if Resolver("/", [], PACKAGES, sys.path).find(name)}
    lacking = {m["module"] for m in answer["missing"]}
    assert not lacking & have
    assert lacking <= {"torch", "torchvision", "PIL"} and lacking | have == {"torch", "torchvision", "PIL"}


def test_what_base_handler_does(tmp_path: Path) -> None:
    base = "from ts.torch_handler.base_handler import BaseHandler\nclass H(BaseHandler):\n"
    write(tmp_path, {"handler.py": base + "    def initialize(self, c):\n        self.x = 1\n"})
    assert inspect(tmp_path)["base"]["initialize"] is False
    write(
        tmp_path,
        {
            "handler.py": base
            + "    def initialize(self, c):\n        super().initialize(c)\n    def _load_torchscript_model(self, p): pass\n"
        },
    )
    assert inspect(tmp_path)["base"] == {"initialize": True, "torchscript": False, "pickled": True}


def test_model_file(tmp_path: Path) -> None:
    write(tmp_path, {"net.py": "import absent_a\nclass A: pass\nclass B: pass\n"})
    answer = inspect(tmp_path, "base_handler", model_file="net.py")
    assert ("net.py", 1, "absent_a", "absent_a", True) in imports(answer)
    assert codes(answer) == [("model_file_classes", "net.py", 0, True)]


def test_the_module_search_path(tmp_path: Path) -> None:
    write(
        tmp_path,
        {
            "model/handler.py": "import extra_module\n" + HANDLER,
            "extra/extra_module.py": "",
            "extra/x-1.5.dist-info/METADATA": "",
        },
    )
    assert len(inspect(tmp_path / "model")["missing"]) == 1
    answer = inspect(tmp_path / "model", python_path=[str(tmp_path / "extra")])
    assert answer["missing"] == []
    assert answer["distributions"]["x"] == "1.5"


# What would run by itself if the archive's folder were on the module search path, or if anything of it were imported.
TRAPS = [
    *("sitecustomize.py", "usercustomize.py", "conftest.py", "setup.py"),
    *("handler.py", "helper.py", "package/__init__.py", "package/sub.py", "json.py"),
]


def test_nothing_of_the_archive_is_run(tmp_path: Path) -> None:
    model, ran = tmp_path / "model", tmp_path / "ran"
    trap = "open(%r, 'a').write(__file__)\n" % str(ran)
    code = "import helper, json, sitecustomize, package.sub\nfrom package import sub\n" + HANDLER
    write(model, {name: trap + (code if name == "handler.py" else "") for name in TRAPS})
    write(
        model, {"trap.pth": "import os; open(%r, 'a')\n" % str(ran), "pyvenv.cfg": "home = /nowhere\n", "python311._pth": ".\n"}
    )
    for env in ({}, {"PYTHONPATH": ""}, {"PYTHONPATH": ":."}):
        answer = inspect(model, env=env, python_path=[str(model)])
        assert set(answer["modules"]) == {
            "handler.py",
            "helper.py",
            "json.py",
            "package/__init__.py",
            "package/sub.py",
            "sitecustomize.py",
        }
        assert not ran.exists()
    assert not list(model.rglob("__pycache__"))


HOSTILE = {
    "brackets": "x = " + "(" * 5000 + ")" * 5000,
    "unary": "x = " + "-" * 200000 + "1",
    "attributes": "x = a" + ".b" * 100000,
    "additions": "x = 1" + " + 1" * 100000,
    "blocks": "".join(" " * depth + "if x:\n" for depth in range(99)) + " " * 99 + "pass\n",
    "strings": "x = '''" + "a" * (3 << 20) + "'''",
    "not text": "\x01\x02\x03",
    "elses": "if a: pass\n" + "elif b: pass\n" * 20000,
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_files(tmp_path: Path, name: str) -> None:
    """It answers, or it crashes as the worker would; it neither hangs nor raises."""
    write(tmp_path, {"handler.py": HOSTILE[name] + "\n" + HANDLER})
    question = json.dumps({"folder": str(tmp_path), "handler": "handler.py"}).encode("utf-8")
    done = subprocess.run(
        [sys.executable, "-B", SCRIPT], input=question, stdout=subprocess.PIPE, cwd="/", timeout=LIMIT, check=False
    )
    assert done.returncode <= 0
    if done.returncode == 0:
        json.loads(done.stdout.decode("utf-8"))


def test_links_in_circles(tmp_path: Path) -> None:
    write(tmp_path, {"handler.py": "import loop, a\n" + HANDLER, "a.py": "import b\n", "b.py": "import a, absent_a\n"})
    os.symlink("loop", str(tmp_path / "loop"))
    assert ("b.py", 1, "absent_a", "absent_a", True) in imports(inspect(tmp_path))


def test_a_time_limit(tmp_path: Path) -> None:
    write(tmp_path, {"m%d.py" % i: "import m%d\n" % (i + 1) for i in range(50)})
    write(tmp_path, {"handler.py": "import m0\n" + HANDLER, "m50.py": ""})
    assert inspect(tmp_path)["incomplete"] == ""
    assert inspect(tmp_path, limit=1e-9)["incomplete"] != ""
