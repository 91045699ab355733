"""Finds TorchServe's own distributions in the environment: they bring packages of the same names (ts, model_archiver, ...)."""

from __future__ import annotations

import sys
from importlib import metadata
from pathlib import Path
from typing import Any, List, Optional

from flambeau import version

RIVALS = (
    "torchserve",
    "torch-model-archiver",
    "torch-workflow-archiver",
    "torchserve-nightly",
    "torch-model-archiver-nightly",
    "torch-workflow-archiver-nightly",
)
REINSTALL = "  %s -m pip install --force-reinstall --no-deps flambeau   (or the wheel's file)" % sys.executable
_PACKAGES = ("ts", "model_archiver", "workflow_archiver")


def mixture(home: Path) -> Optional[str]:
    """Gives what is wrong with the environment in words for its owner, or None.

    home: the folder that holds this distribution's packages. Only what Python finds there or before it counts: what comes
    after it on sys.path cannot be imported in place of ours.
    """
    found = _rivals(_searched(home))
    if found:
        return (
            "%s %s installed in the same environment as flambeau (%s), and would bring other code under the same package names: "
            "a mixture of the two would run. Remove what is not wanted and put flambeau's own files back:\n"
            "  %s -m pip uninstall -y %s\n%s"
            % (" and ".join(found), "is" if len(found) == 1 else "are", home, sys.executable, " ".join(found), REINSTALL)
        )
    missing = [name for name in _PACKAGES if not (home / name / "__init__.py").is_file()]
    if missing and version.packaged():
        return (
            "this installation of flambeau has lost the Python packages %s (looked in %s); removing torchserve or its archivers "
            "takes them along. Put them back:\n%s" % (", ".join(missing), home, REINSTALL)
        )
    return None


def _searched(home: Path) -> List[str]:
    """Gives the folders that Python searches up to and including home."""
    folders: List[str] = []
    for folder in sys.path:
        folders.append(folder)
        if Path(folder or ".").resolve() == home:
            return folders
    return [str(home)]


def _rivals(folders: List[str]) -> List[str]:
    discover: Any = metadata.Distribution.discover
    return [name for name in RIVALS if any(True for _ in discover(name=name, path=folders))]
