"""Makes the wheel: builds the Go parts, and packs them with the Python packages. Also the build backend that pip calls.

The standard library is enough. Equal sources and tools make equal wheels, byte for byte.
"""

from __future__ import annotations

import base64
import hashlib
import importlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
import zipfile
from pathlib import Path
from typing import Any, Dict, Iterable, Iterator, List, Mapping, NamedTuple, Optional, Sequence, Tuple

import elf

HERE = Path(__file__).resolve().parent
PROJECT = HERE.parent
ROOT = PROJECT.parent

# In a wheel a time before 1980 cannot be written.
_OLDEST = 315532800
_PROGRAM, _PLAIN = 0o755, 0o644

# The libraries of glibc itself, which every system that a manylinux tag admits has.
_GLIBC = frozenset(
    (
        "ld-linux-aarch64.so.1",
        "ld-linux-x86-64.so.2",
        "libc.so.6",
        "libdl.so.2",
        "libm.so.6",
        "libpthread.so.0",
        "libresolv.so.2",
        "librt.so.1",
    )
)
# The oldest tag that is given: pip knows no older one on most machines.
_FLOOR = (2, 17)


class BuildError(Exception):
    """No wheel was made. The text says why and what to do."""


class Part(NamedTuple):
    """A Go program or library in the wheel: its package, its name there, whether it needs cgo, more flags of go build."""

    package: str
    name: str
    cgo: bool
    flags: Tuple[str, ...] = ()


class Member(NamedTuple):
    """One file of a wheel."""

    name: str
    data: bytes
    mode: int = _PLAIN


PARTS = (
    Part("./cmd/flambeau", "flambeau/_bin/flambeau", cgo=False),
    Part("./cmd/libflambeau", "flambeau/_lib/libflambeau.so", cgo=True, flags=("-buildmode=c-shared",)),
    Part("./cmd/flambeau-onnx", "flambeau/_bin/flambeau-onnx", cgo=True),
)


def make_wheel(out: Path, parts: Mapping[str, Path], licences: Optional[Mapping[str, Path]] = None) -> Path:
    """Makes the wheel in the folder out and gives its path.

    parts: built files by their names in the wheel (see PARTS). licences: texts of what is linked into them, by name.
    Raises BuildError when a part or a package is missing.
    """
    members = [Member(name, _read(path), _PROGRAM) for name, path in parts.items()]
    members += _packages()
    members.append(Member("flambeau/VERSION", (version() + "\n").encode()))
    licences = dict(licences or {})
    licences.setdefault("LICENSE", ROOT / "LICENSE")
    return _write(out, members, platform_tag(parts.values()), licences)


def platform_tag(files: Iterable[Path]) -> str:
    """Gives the tag of the systems that can run the files: manylinux with the glibc they need, else plain linux.

    Raises BuildError when they are for different machines, or not for Linux at all.
    """
    machines, newest, known = set(), _FLOOR, True
    for path in files:
        try:
            need = elf.needs(path)
        except elf.NotElfError as why:
            raise BuildError("%s. A wheel is made on Linux, for Linux." % why) from why
        machines.add(need.machine)
        known = known and need.libraries <= _GLIBC
        for name in need.versions:
            found = _glibc(name)
            known = known and found is not None
            newest = max(newest, found or newest)
    if len(machines) != 1:
        raise BuildError(
            "the parts of the wheel are for different machines: %s. Build them all for one." % ", ".join(sorted(machines))
        )
    machine = machines.pop()
    if not known:
        return "linux_" + machine
    tag = "manylinux_%d_%d_%s" % (newest + (machine,))
    return tag + ".manylinux2014_" + machine if newest == _FLOOR else tag


def _glibc(name: str) -> Optional[Tuple[int, int]]:
    """Gives the glibc release that a symbol version came with; None for one that no release promises to keep."""
    if name == "GLIBC_ABI_DT_RELR":
        return 2, 36
    found = re.fullmatch(r"GLIBC_(\d+)\.(\d+)(\.\d+)?", name)
    return (int(found.group(1)), int(found.group(2))) if found else None


def go_build(out: Path, parts: Sequence[Part] = PARTS) -> Dict[str, Path]:
    """Builds Go parts into a folder and gives them by their names in the wheel. Raises BuildError when go or gcc does not."""
    built = {}
    for part in parts:
        path = out / Path(part.name).name
        flags = "-s -w -buildid= -X main.version=" + version()
        _go(["build", "-trimpath", "-buildvcs=false", "-ldflags", flags, *part.flags, "-o", str(path), part.package], part.cgo)
        built[part.name] = path
    return built


def go_licences(parts: Sequence[Part] = PARTS) -> Dict[str, Path]:
    """Gives the licence texts of all that go links into the parts, by the name that each gets in the wheel."""
    found = {"third_party/go/LICENSE": Path(_go(["env", "GOROOT"], cgo=True).strip()) / "LICENSE"}
    template = "{{with .Module}}{{if not .Main}}{{.Path}} {{.Dir}}{{end}}{{end}}"
    for line in _go(["list", "-deps", "-f", template, *(part.package for part in parts)], cgo=True).splitlines():
        module, _, folder = line.strip().partition(" ")
        for path in sorted(Path(folder).iterdir()) if folder else ():
            if re.match(r"(LICEN[CS]E|NOTICE|COPYING|PATENTS)\b", path.name, re.IGNORECASE) and path.is_file():
                found["third_party/%s/%s" % (module, path.name)] = path
    return found


def version() -> str:
    """Gives the version that the repository's VERSION file states."""
    text = (ROOT / "VERSION").read_text(encoding="utf-8").strip()
    if not re.fullmatch(r"\d+(\.\d+)*((a|b|rc)\d+)?(\.post\d+)?(\.dev\d+)?", text):
        raise BuildError("the file VERSION holds %r, which is not a version as Python has them (1.2.3, 1.2.3rc1)." % text)
    return text


# The hooks of PEP 517 and PEP 660.


def get_requires_for_build_wheel(config_settings: Optional[Mapping[str, Any]] = None) -> List[str]:
    """Gives what a build needs besides pyproject.toml's list: nothing."""
    return []


get_requires_for_build_editable = get_requires_for_build_wheel
get_requires_for_build_sdist = get_requires_for_build_wheel


def build_wheel(wheel_directory: str, config_settings: Any = None, metadata_directory: Optional[str] = None) -> str:
    """Builds the Go parts and makes the wheel; gives its file name."""
    with tempfile.TemporaryDirectory() as work:
        return make_wheel(Path(wheel_directory), go_build(Path(work)), go_licences()).name


def build_editable(wheel_directory: str, config_settings: Any = None, metadata_directory: Optional[str] = None) -> str:
    """Makes a wheel that only points at this checkout; the commands then use the binary that ``make build`` leaves there."""
    members = [Member("_flambeau_editable.pth", (str(PROJECT / "src") + "\n").encode())]
    return _write(Path(wheel_directory), members, "any", {"LICENSE": ROOT / "LICENSE"}).name


def build_sdist(sdist_directory: str, config_settings: Any = None) -> str:
    """Refuses: the Go sources lie above this folder, so the repository itself is the source distribution."""
    raise BuildError("there is no sdist of flambeau: build the wheel from a checkout of its repository (make wheel).")


def _packages() -> Iterator[Member]:
    for package in _project()["tool"]["flambeau"]["packages"]:
        source = PROJECT / "src" / package
        if not (source / "__init__.py").is_file():
            raise BuildError("the package %s is missing (%s)." % (package, source))
        for path in sorted(source.rglob("*")):
            inner = path.relative_to(PROJECT / "src")
            if path.is_file() and "__pycache__" not in inner.parts and not {"_bin", "_lib"} & set(inner.parts[:2]):
                yield Member(inner.as_posix(), _read(path))


def _write(out: Path, members: Sequence[Member], platform: str, licences: Mapping[str, Path]) -> Path:
    project = _project()["project"]
    info = "%s-%s.dist-info" % (project["name"], version())
    tags = "py3-none-" + platform
    files = sorted(members)
    files += [Member("%s/licenses/%s" % (info, name), _read(licences[name])) for name in sorted(licences)]
    files.append(Member(info + "/METADATA", _metadata(project, sorted(licences))))
    wheel = ["Wheel-Version: 1.0", "Generator: flambeau", "Root-Is-Purelib: %s" % str(platform == "any").lower()]
    wheel += ["Tag: py3-none-" + tag for tag in platform.split(".")]
    files.append(Member(info + "/WHEEL", _lines(wheel)))
    scripts = ["[console_scripts]"] + ["%s = %s" % item for item in sorted(project["scripts"].items())]
    files.append(Member(info + "/entry_points.txt", _lines(scripts)))
    record = ["%s,sha256=%s,%d" % (_quoted(member.name), _digest(member.data), len(member.data)) for member in files]
    files.append(Member(info + "/RECORD", _lines([*record, info + "/RECORD,,"])))
    target = out / ("%s-%s-%s.whl" % (project["name"], version(), tags))
    out.mkdir(parents=True, exist_ok=True)
    unfinished = target.with_suffix(".unfinished")
    stamp = time.gmtime(max(_OLDEST, int(os.environ.get("SOURCE_DATE_EPOCH", _OLDEST))))[:6]
    with zipfile.ZipFile(unfinished, "w", zipfile.ZIP_DEFLATED) as archive:
        for member in files:
            entry = zipfile.ZipInfo(member.name, stamp)
            entry.create_system = 3
            entry.external_attr = (0o100000 | member.mode) << 16
            entry.compress_type = zipfile.ZIP_DEFLATED
            archive.writestr(entry, member.data)
    unfinished.replace(target)
    return target


def _metadata(project: Mapping[str, Any], licences: Sequence[str]) -> bytes:
    lines = ["Metadata-Version: 2.4", "Name: " + project["name"], "Version: " + version(), "Summary: " + project["description"]]
    lines += ["Keywords: " + ",".join(project["keywords"]), "License-Expression: " + project["license"]]
    lines += ["License-File: " + name for name in licences]
    lines += ["Classifier: " + name for name in project["classifiers"]]
    lines += ["Project-URL: %s, %s" % item for item in project["urls"].items()]
    lines += ["Requires-Python: " + project["requires-python"]]
    lines += ["Requires-Dist: " + name for name in project["dependencies"]]
    readme = ROOT / "README.md"
    if not readme.is_file():
        return _lines(lines)
    return _lines([*lines, "Description-Content-Type: text/markdown", ""]) + readme.read_bytes()


def _project() -> Dict[str, Any]:
    try:
        reader: Any = importlib.import_module("tomllib")
    except ImportError:
        reader = _old_reader()
    with (PROJECT / "pyproject.toml").open("rb") as stream:
        return dict(reader.load(stream))


def _old_reader() -> Any:
    """Gives a reader of TOML for a Python that has none of its own: tomli, or the copy of it that pip carries."""
    for name in ("tomli", "pip._vendor.tomli"):
        try:
            return importlib.import_module(name)
        except ImportError:
            continue
    raise BuildError(
        "Python %s cannot read pyproject.toml. Build with Python 3.11 or newer, or install tomli." % sys.version.split()[0]
    )


def _go(arguments: Sequence[str], cgo: bool) -> str:
    environment = dict(os.environ, CGO_ENABLED="1" if cgo else "0")
    name = os.environ.get("GO") or "go"
    program = shutil.which(name)
    if program is None:
        raise BuildError("%s is not on PATH. Install the Go release that go.mod names, or add its bin folder to PATH." % name)
    done = subprocess.run([program, *arguments], cwd=str(ROOT), env=environment, capture_output=True, check=False)
    if done.returncode != 0:
        words = done.stderr.decode("utf-8", "replace").strip()
        raise BuildError("go %s failed in %s:\n%s" % (" ".join(arguments), ROOT, words))
    return done.stdout.decode("utf-8")


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as why:
        raise BuildError("cannot read %s: %s." % (path, why.strerror)) from why


def _digest(data: bytes) -> str:
    return base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()


def _quoted(name: str) -> str:
    return '"%s"' % name.replace('"', '""') if set(name) & set(',"') else name


def _lines(lines: Sequence[str]) -> bytes:
    return ("\n".join(lines) + "\n").encode("utf-8")
