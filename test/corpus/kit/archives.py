"""Makes the archives of cases with torch-model-archiver, and says what is in an archive."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path
from typing import Any

from kit.cases import Case

SUFFIXES = {"default": ".mar", "zip-store": ".mar", "tgz": ".tar.gz", "no-archive": "", "bare": ".mar"}
MADE_HERE = Path(__file__).with_name("make.py")
MANIFEST = "MAR-INF/MANIFEST.json"
OWN_FIELDS = ("createdOn", "archiverVersion")  # of a manifest: every run and every archiver has its own


class ArchiveError(Exception):
    """An archive that cannot be made; the text says why."""


def file_name(archive: dict[str, Any]) -> str:
    """The name of an archive in the store."""
    return "%(name)s-%(version)s" % archive + SUFFIXES[archive["format"]]


def make_files(cases: list[Case], made: Path) -> None:
    """Run the make.py of every case that has one, in a folder of its own below `made`. Raises ArchiveError."""
    jobs: list[str] = []
    for case in cases:
        (made / case.name).mkdir(parents=True, exist_ok=True)
        if (case.folder / "make.py").is_file():
            jobs += [str(case.folder / "make.py"), str(made / case.name)]
    if jobs:
        done = subprocess.run(
            [sys.executable, str(MADE_HERE), *jobs], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False
        )
        if done.returncode != 0:
            raise ArchiveError(
                "a make.py failed (it needs torch, torchvision and Pillow):\n" + done.stdout.decode("utf-8", "replace")
            )


def build(case: Case, archive: dict[str, Any], made: Path, archiver: str, store: Path) -> Path:
    """Make one archive of a case and put it into a store. Raises ArchiveError."""
    target = store / file_name(archive)
    if archive["format"] == "bare":
        with zipfile.ZipFile(target, "w") as bare:
            for name in [archive["handler"], *archive.get("extra", [])]:
                bare.write(case.folder / name, Path(name).name)
        return target
    staging = store / (".staging-" + target.name)
    staging.mkdir()
    done = subprocess.run(
        [archiver, *_arguments(case, archive, made / case.name), "--export-path", str(staging), "--force"],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        check=False,
    )
    results = list(staging.iterdir())
    if done.returncode != 0 or len(results) != 1:
        raise ArchiveError("%s: %s failed:\n%s" % (case.name, archiver, done.stdout.decode("utf-8", "replace")))
    if target.is_dir():
        shutil.rmtree(target)
    results[0].rename(target)
    staging.rmdir()
    return target


def _arguments(case: Case, archive: dict[str, Any], made: Path) -> list[str]:
    def path(name: str) -> str:
        return str(case.folder / name if (case.folder / name).exists() else made / name)

    handler = archive["handler"]
    file, colon, function = handler.partition(":")
    for known in (path(file), path(file + ".py")):
        if Path(known).is_file():
            handler = (known if colon == "" else known[: -len(".py")]) + colon + function
            break
    arguments = ["--model-name", archive["name"], "--version", archive["version"], "--handler", handler]
    for key, option in (
        ("model_file", "--model-file"),
        ("serialized", "--serialized-file"),
        ("config", "--config-file"),
        ("requirements", "--requirements-file"),
    ):
        if key in archive:
            arguments += [option, path(archive[key])]
    if "extra" in archive:
        arguments += ["--extra-files", ",".join(path(name) for name in archive["extra"])]
    if "runtime" in archive:
        arguments += ["--runtime", archive["runtime"]]
    return [*arguments, "--archive-format", archive["format"]]


def contents(path: Path) -> dict[str, Any]:
    """The files of an archive, and its manifest without what is of its own."""
    files: dict[str, Any] = {}
    if path.is_dir():
        files = {str(file.relative_to(path)): file.read_bytes() for file in path.rglob("*") if file.is_file()}
    elif path.name.endswith(".tar.gz"):
        with tarfile.open(path) as tar:
            for member in tar.getmembers():
                stream = tar.extractfile(member)
                if stream is not None:
                    files[member.name.partition("/")[2]] = stream.read()
    else:
        with zipfile.ZipFile(path) as archive:
            files = {name: archive.read(name) for name in archive.namelist() if not name.endswith("/")}
    if MANIFEST in files:
        manifest = json.loads(files[MANIFEST].decode("utf-8"))
        files[MANIFEST] = {key: value for key, value in manifest.items() if key not in OWN_FIELDS}
    return files
