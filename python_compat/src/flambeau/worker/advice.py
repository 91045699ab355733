"""What can be done about a model that does not load: one sentence for somebody who sees only the server's answer."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import sys

from flambeau.pip_names import PIP_NAMES, canonical, known_pip_name

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Iterator, List, Mapping, Tuple

INSTALLED = "FLAMBEAU_REQUIREMENTS_INSTALLED"  # set by the server when it has installed the model's requirements file

_LISTED = 8  # names of files that one sentence may have
_LOOKED_AT = 2000  # files of an archive that are looked at


def advice(error: BaseException, folder: str, environ: Mapping[str, str]) -> str:
    """What to do about `error`, which the load of the model in `folder` ended with; "" when there is nothing to say."""
    if isinstance(error, ImportError):
        library = re.search(r"(lib[^\s/:]*\.so[^\s:]*): cannot open shared object file", str(error))
        if library:
            return _about_library(library.group(1))
        return _about_module(error.name, folder, environ) if error.name else ""
    if isinstance(error, FileNotFoundError) and isinstance(error.filename, str):
        return _about_file(error.filename, folder)
    # torch's own errors have no filename.
    for path in re.findall(re.escape(os.path.join(os.path.realpath(folder), "")) + r"[^\s'\",:;]+", str(error)):
        if not os.path.exists(path):
            return _about_file(path, folder)
    return ""


def python_files(folder: str) -> str:
    """The Python files at the top of a model's folder, for a message."""
    names = [name for name in sorted(os.listdir(folder)) if name.endswith(".py")]
    return "the archive's Python files are %s" % _some(names) if names else "the archive has no Python file at all"


def _about_library(name: str) -> str:
    if name.startswith(("libGL.so", "libgthread-", "libglib-")):
        return "%s is a library of the system; the pip package opencv-python-headless does without it" % name
    return "%s is a library of the system that is not installed, or not where LD_LIBRARY_PATH says" % name


def _about_module(name: str, folder: str, environ: Mapping[str, str]) -> str:
    root = name.partition(".")[0]
    prefix = ".".join(name.split(".")[:2])
    if prefix not in PIP_NAMES and name != root and _is_there(root):
        where = getattr(sys.modules.get(root), "__file__", None) or "no file"
        return "%s itself is there (%s): another version of it may have %s" % (root, where, name)
    own = [path for path in _files(folder) if path.endswith((os.sep + root + ".py", os.path.join("", root, "__init__.py")))]
    if own:
        return "the archive has it as %s, and only its top folder is searched" % _some(own)
    known = known_pip_name(name)
    todo = _how_to_install(known or root, folder, environ)
    if not environ.get(INSTALLED) and _requires(folder, (root, known or root)):
        return "it is in the model's requirements: %s" % todo
    if known:
        return "%s comes with the pip package %s: %s" % (root, known, todo)
    return "if %s is a file of yours, add it to the archive by --extra-files; if it is a pip package, %s" % (root, todo)


def _how_to_install(package: str, folder: str, environ: Mapping[str, str]) -> str:
    by_hand = "or install it for %s" % sys.executable
    if environ.get(INSTALLED):
        return "add %s to the model's requirements file, %s" % (package, by_hand)
    requirements = _requirements_file(folder)
    if requirements:
        return "start the server with install_py_dep_per_model=true, so that the model's %s is installed, %s" % (
            requirements,
            by_hand,
        )
    return "add %s to a requirements.txt in the archive (--requirements-file) and start the server with %s, %s" % (
        package,
        "install_py_dep_per_model=true",
        by_hand,
    )


def _requirements_file(folder: str) -> str:
    try:
        with open(os.path.join(folder, "MAR-INF", "MANIFEST.json"), encoding="utf-8") as file:
            return str(json.load(file)["model"].get("requirementsFile") or "")
    except (OSError, ValueError, LookupError, TypeError, AttributeError):
        return ""


def _requires(folder: str, packages: Tuple[str, ...]) -> bool:
    """Whether the requirements file that a model's manifest names has one of the packages, as pip compares names."""
    try:
        with open(os.path.join(folder, _requirements_file(folder)), encoding="utf-8", errors="replace") as file:
            named = {canonical(name) for name in re.findall(r"^\s*([A-Za-z0-9][\w.-]*)", file.read(), re.MULTILINE)}
    except OSError:
        return False
    return any(canonical(name) in named for name in packages)


def _about_file(path: str, folder: str) -> str:
    real, here = os.path.realpath(os.path.join(folder, path)), os.path.realpath(folder)
    base = os.path.basename(path)
    if not base:
        return ""
    elsewhere = [found for found in _files(folder) if os.path.basename(found) == base]
    if elsewhere:
        return "the archive has it as %s: take the folder from context.system_properties['model_dir']" % _some(elsewhere)
    if os.path.isabs(path) and not real.startswith(os.path.join(here, "")):
        return "it is not a path in the archive; put the file there (--extra-files) if it belongs to the model"
    return "the archive has no such file, it has %s; add it by --serialized-file or --extra-files" % _some(
        [found for found in _files(folder) if not found.startswith("MAR-INF" + os.sep)]
    )


def _is_there(module: str) -> bool:
    try:
        return module in sys.modules or importlib.util.find_spec(module) is not None
    except (ImportError, ValueError):
        return False


def _files(folder: str) -> Iterator[str]:
    """The files of a model, relative to its folder, those at the top first; not all of very many."""
    left = _LOOKED_AT
    for parent, folders, names in os.walk(folder):
        folders[:] = sorted(name for name in folders if name != "__pycache__" and not name.startswith("."))
        for name in sorted(names):
            yield os.path.relpath(os.path.join(parent, name), folder)
        left -= len(names)
        if left < 0:
            return


def _some(names: List[str]) -> str:
    if not names:
        return "none"
    more = " and %d more" % (len(names) - _LISTED) if len(names) > _LISTED else ""
    return ", ".join(names[:_LISTED]) + more
