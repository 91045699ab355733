"""Where a model's modules are found: sys.path, and PYTHONPATH for the processes that a handler starts."""

from __future__ import annotations

import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import List, MutableMapping

_PACKAGES = os.path.dirname(os.path.dirname(os.path.dirname(os.path.realpath(__file__))))


INSTALLED = "FLAMBEAU_MODEL_PACKAGES"  # the folder in which the server has installed the model's requirements


def python_path(model_dir: str, handler: str, inherited: str, packages: str = _PACKAGES, installed: str = "") -> List[str]:
    """The entries of PYTHONPATH for a model, in the order in which TorchServe puts them.

    These are the folder part of a handler "folder/file:function", the server's own PYTHONPATH, the model's folder, that of its
    installed requirements (which TorchServe installs into the model's folder, or the parent of its link), the parent of its link
    when it is a link, and the folder of these packages unless that is one for installed packages.
    """
    real = os.path.realpath(model_dir)
    entries = []
    if ":" in handler:
        part = os.path.join(real, handler.partition(":")[0].rpartition("/")[0])
        if part != os.path.join(real, "") and os.path.isdir(part):
            entries.append(part)
    entries += [entry for entry in inherited.split(os.pathsep) if entry]
    entries.append(real)
    if installed:
        entries.append(installed)
    if os.path.islink(model_dir):
        entries.append(os.path.dirname(os.path.abspath(model_dir)))
    if "site-packages" not in packages and "dist-packages" not in packages:
        entries.append(packages)
    return entries


def apply(model_dir: str, handler: str, environ: MutableMapping[str, str]) -> None:
    """Put a model's folders on sys.path, before the standard library as PYTHONPATH would, and into PYTHONPATH."""
    entries = python_path(model_dir, handler, environ.get("PYTHONPATH", ""), installed=environ.get(INSTALLED, ""))
    environ["PYTHONPATH"] = os.pathsep.join(entries)
    # These packages are found by their own finder, and nothing that lies beside them is.
    first = [os.path.abspath(entry) for entry in entries if entry != _PACKAGES]
    sys.path[:] = first + [entry for entry in sys.path if entry not in first]


_OURS = ("flambeau", "ts")  # found by the worker's own finder, loaded already or not


def shadowed(model_dir: str) -> List[str]:
    """The model's own top-level modules that an import will not find, because one of that name is loaded or built in."""
    names = []
    for entry in sorted(os.listdir(model_dir)):
        path = os.path.join(model_dir, entry)
        if entry.endswith(".py") and os.path.isfile(path):
            name = entry[: -len(".py")]
        elif os.path.isfile(os.path.join(path, "__init__.py")):
            name = entry
        else:
            continue
        if name == "__main__":
            continue
        loaded = sys.modules.get(name)
        other = loaded is not None and not _is_at(getattr(loaded, "__file__", None), path)
        if other or name in _OURS or name in sys.builtin_module_names:
            names.append(entry)
    return names


def _is_at(file: object, path: str) -> bool:
    if not isinstance(file, str):
        return False
    real = os.path.realpath(path)
    return os.path.realpath(file) in (real, os.path.join(real, "__init__.py"))
