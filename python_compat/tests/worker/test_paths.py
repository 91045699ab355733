"""Where a model's modules are found."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Dict

import pytest
from workerkit import make_model

from flambeau.worker import paths

PACKAGES = str(Path(paths.__file__).parents[2])


def test_the_order_is_torchserves(tmp_path: Path) -> None:
    model = make_model(tmp_path / "m", {"sub/h.py": ""})
    link = tmp_path / "links" / "m"
    link.parent.mkdir()
    link.symlink_to(model)
    got = paths.python_path(str(link), "sub/h.py:go", "/inherited:/second", packages="/opt/x")
    assert got == [str(model / "sub"), "/inherited", "/second", str(model), str(link.parent), "/opt/x"]


@pytest.mark.parametrize("handler", ["h.py", "h.py:go", "nowhere/h.py:go", ""])
def test_a_handler_without_a_folder_adds_none(tmp_path: Path, handler: str) -> None:
    model = make_model(tmp_path, {"h.py": ""})
    assert paths.python_path(str(model), handler, "", packages="/opt/x") == [str(model), "/opt/x"]


@pytest.mark.parametrize("packages", ["/usr/lib/python3/dist-packages", "/v/lib/python3.11/site-packages"])
def test_installed_packages_are_not_added(tmp_path: Path, packages: str) -> None:
    assert packages not in paths.python_path(str(tmp_path), "h", "", packages=packages)


def test_apply_puts_the_model_before_everything_and_tells_children(tmp_path: Path) -> None:
    model = make_model(tmp_path, {"h.py": ""})
    environ: Dict[str, str] = {"PYTHONPATH": "/inherited"}
    sys.path.append("/inherited")
    paths.apply(str(model), "h.py", environ)
    assert sys.path[:2] == ["/inherited", str(model)]
    assert sys.path.count("/inherited") == 1
    assert environ["PYTHONPATH"].split(os.pathsep) == ["/inherited", str(model), PACKAGES]


def test_modules_that_an_import_will_not_find_are_named(tmp_path: Path) -> None:
    files = {
        "json.py": "",
        "logging/__init__.py": "",
        "sys.py": "",
        "fine_name.py": "",
        "json.txt": "",
        "os": "",
        "ts.py": "",
        "flambeau.py": "",
    }
    model = make_model(tmp_path, files)
    assert paths.shadowed(str(model)) == ["flambeau.py", "json.py", "logging", "sys.py", "ts.py"]


def test_a_models_own_loaded_module_is_not_hidden(tmp_path: Path) -> None:
    model = make_model(tmp_path, {"surely_mine.py": "", "surely_pkg/__init__.py": ""})
    sys.path.insert(0, str(model))
    import surely_mine  # type: ignore[import-not-found]  # noqa: F401
    import surely_pkg  # type: ignore[import-not-found]  # noqa: F401

    assert paths.shadowed(str(model)) == []
