"""Inputs and command lines on which TorchServe's archivers were recorded, and the code that runs a case.

golden.json holds what torch-model-archiver 0.12.0 and torch-workflow-archiver 0.2.15 made of them. To record it again:

    python archiver_cases.py MODEL_ARCHIVER WORKFLOW_ARCHIVER >golden.json
"""

import json
import os
import re
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from pathlib import Path
from typing import Any, Dict, List, Sequence

WORKFLOW = "workflow:"
_CREATED = re.compile(r'"createdOn": "\d\d/\d\d/\d{4} \d\d:\d\d:\d\d"')

_FILES = {
    "svc.py": "def handle(data, context):\n    return data\n",
    "sub/other.py": "x = 1\n",
    "model.py": "class Net:\n    pass\n",
    "weights.pt": "w" * 3000,
    "req.txt": "numpy\n",
    "config.yaml": "minWorkers: 1\n",
    "a.txt": "A",
    "b.txt": "B",
    "run.sh": "#!/bin/sh\n",
    "x/1.txt": "1",
    "x/sub/2.txt": "2",
    "x/.hidden_folder/3": "3",
    "x/.hidden_file": "h",
    "x/__pycache__/z.pyc": "z",
    "x/sub/__pycache__/z.pyc": "z",
    "x/__MACOSX/q": "q",
    "y/sub/9.txt": "9",
    "y2/7.txt": "7",
    "same/a.txt": "another A",
    "dataset[1].txt": "b",
    "\u00fcnic\u00f6de \u2603.txt": "u",
    "with blank.txt": "s",
    "lib.so": "so",
    "extracted/MAR-INF/MANIFEST.json": "{}",
    "extracted/z.txt": "z",
    "links/real.txt": "r",
    "broken/sub/f": "f",
    "broken_top/f": "f",
    "deep/1/2/3/4/5/6/7/8/9/f": "f",
    "file": "f",
    "wf.yaml": "dag:\n",
}
_LINKS = {
    "link.txt": "a.txt",
    "link_to_folder": "x",
    "links/folder": "../x",
    "nowhere": "gone",
    "broken/sub/dangling": "gone",
    "broken_top/dangling": "gone",
}
_TAKEN = ("taken/m.mar", "taken/w.war")
_OLD = b"an older one"
_MODES = {"b.txt": 0o600, "run.sh": 0o755}

_M = ["--model-name", "m", "--version", "1.0"]
_S = [*_M, "--handler", "svc.py"]
_W = ["--workflow-name", "w", "--spec-file", "wf.yaml"]

CASES: Dict[str, List[str]] = {
    "plain": _S,
    "handler without ending": [*_M, "--handler", "svc"],
    "handler with function": [*_M, "--handler", "svc:handle"],
    "handler with ending and function": [*_M, "--handler", "svc.py:handle"],
    "handler in a folder": [*_M, "--handler", "sub/other.py", "--export-path", "out"],
    "handler built in": [*_M, "--handler", "image_classifier", "--serialized-file", "weights.pt"],
    "handler not built in": [*_M, "--handler", "text_handler"],
    "handler missing": [*_M, "--handler", "nope.py"],
    "handler empty": [*_M, "--handler", ""],
    "everything": [
        *_S,
        *["--model-file", "model.py", "--serialized-file", "weights.pt", "--extra-files", "a.txt,b.txt,run.sh"],
        *["-r", "req.txt", "-c", "config.yaml", "--runtime", "python3"],
    ],
    "zip-store": [*_S, "--archive-format", "zip-store", "--extra-files", "x"],
    "tgz": [*_S, "--archive-format", "tgz", "--extra-files", "x,run.sh,b.txt"],
    "tgz with function": [*_M, "--handler", "sub/other:fn", "--archive-format", "tgz", "--serialized-file", "weights.pt"],
    "no-archive": [*_S, "--archive-format", "no-archive", "--extra-files", "x,run.sh,b.txt"],
    "folder": [*_S, "--extra-files", "x"],
    "folder with slash": [*_S, "--extra-files", "x/"],
    "folders": [*_S, "--extra-files", "x,y2"],
    "folders that collide": [*_S, "--extra-files", "x,y"],
    "folder and files": [*_S, "--extra-files", "x,file,y2/7.txt"],
    "deep folder": [*_S, "--extra-files", "deep"],
    "blank after comma": [*_S, "--extra-files", "a.txt, b.txt"],
    "comma at the end": [*_S, "--extra-files", "a.txt,"],
    "wildcard": [*_S, "--extra-files", "*.txt"],
    "wildcard without match": [*_S, "--extra-files", "*.nope"],
    "wildcard sign": [*_S, "--extra-files", "?.txt"],
    "wildcard folder": [*_S, "--extra-files", "y2*"],
    "brackets in a name": [*_S, "--extra-files", "dataset[1].txt"],
    "names beyond ASCII": [*_S, "--extra-files", "\u00fcnic\u00f6de \u2603.txt,with blank.txt"],
    "one name twice": [*_S, "--extra-files", "a.txt,same/a.txt"],
    "links": [*_S, "--extra-files", "link.txt,link_to_folder"],
    "links in a folder": [*_S, "--extra-files", "links"],
    "link to nothing": [*_S, "--extra-files", "nowhere"],
    "link to nothing in a folder": [*_S, "--extra-files", "broken_top"],
    "link to nothing deeper": [*_S, "--extra-files", "broken"],
    "pipe": [*_S, "--extra-files", "pipe"],
    "manifest among the inputs": [*_S, "--extra-files", "extracted"],
    "extra file missing": [*_S, "--extra-files", "nope.txt"],
    "serialized file missing": [*_S, "--serialized-file", "nope.pt"],
    "serialized file empty": [*_S, "--serialized-file", ""],
    "serialized file a folder": [*_S, "--serialized-file", "x"],
    "model file missing": [*_S, "--model-file", "nope.py"],
    "requirements missing": [*_S, "-r", "nope"],
    "config missing": [*_S, "-c", "nope"],
    "name with blank": ["--model-name", "a b", "--version", "1", "--handler", "svc.py"],
    "name with slash": ["--model-name", "a/b", "--version", "1", "--handler", "svc.py"],
    "name unusual": ["--model-name", "9a_b-c.d", "--version", "v-x", "--handler", "svc.py"],
    "version beyond ASCII": ["--model-name", "m", "--version", "\u00fc", "--handler", "svc.py"],
    "no name": ["--version", "1", "--handler", "svc.py"],
    "no version": ["--model-name", "m", "--handler", "svc.py"],
    "no handler": _M,
    "unknown format": [*_S, "--archive-format", "zip"],
    "unknown runtime": [*_S, "--runtime", "java"],
    "unknown flag": [*_S, "--nope"],
    "flags shortened": ["--model-n", "m", "--ver", "1.0", "--hand", "svc.py"],
    "help": ["-h"],
    "export path a file": [*_S, "--export-path", "file"],
    "export path missing": [*_S, "--export-path", "nope"],
    "already there": [*_S, "--export-path", "taken"],
    "replaced": [*_S, "--export-path", "taken", "-f"],
    "native": [*_M, "--handler", "lib:H", "--runtime", "LSP"],
    "native built in": [*_M, "--handler", "TorchScriptHandler", "--runtime", "LSP"],
    "native with ending": [*_M, "--handler", "lib.so", "--runtime", "LSP"],
    WORKFLOW + "plain": [*_W, "--handler", "svc.py"],
    WORKFLOW + "extra files": [*_W, "--handler", "sub/other.py", "--extra-files", "a.txt,b.txt", "--export-path", "out"],
    WORKFLOW + "blank after comma": [*_W, "--handler", "svc.py", "--extra-files", "a.txt, b.txt"],
    WORKFLOW + "no handler": _W,
    WORKFLOW + "spec missing": ["--workflow-name", "w", "--spec-file", "nope", "--handler", "svc.py"],
    WORKFLOW + "folder": [*_W, "--handler", "svc.py", "--extra-files", "x"],
    WORKFLOW + "wildcard": [*_W, "--handler", "svc.py", "--extra-files", "*.txt"],
    WORKFLOW + "name with blank": ["--workflow-name", "a b", "--spec-file", "wf.yaml", "--handler", "svc.py"],
    WORKFLOW + "no spec": ["--workflow-name", "w"],
    WORKFLOW + "export path missing": [*_W, "--handler", "svc.py", "--export-path", "nope"],
    WORKFLOW + "already there": [*_W, "--handler", "svc.py", "--export-path", "taken"],
    WORKFLOW + "replaced": [*_W, "--handler", "svc.py", "--export-path", "taken", "-f"],
}


def make_inputs(folder: Path) -> None:
    """Writes the files that the cases pack into an empty folder."""
    for name, text in _FILES.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
        path.chmod(_MODES.get(name, 0o644))
    for name, target in _LINKS.items():
        (folder / name).symlink_to(target)
    os.mkfifo(str(folder / "pipe"))
    (folder / "out").mkdir()
    (folder / "taken").mkdir()
    for name in _TAKEN:
        (folder / name).write_bytes(_OLD)


def run_case(command: Sequence[str], arguments: Sequence[str], folder: Path) -> Dict[str, Any]:
    """Runs an archiver in a folder with fresh inputs. Gives its exit code, its errors, and mode and text of each changed file.

    The folder gets two sub-folders, work and tmp; what the archiver leaves in tmp ($TMPDIR) is not part of the result.
    """
    work, tmp = folder / "work", folder / "tmp"
    work.mkdir()
    tmp.mkdir()
    make_inputs(work)
    before = set(_files(work))
    done = subprocess.run(
        [*command, *arguments],
        cwd=str(work),
        env=dict(os.environ, TMPDIR=str(tmp)),
        capture_output=True,
    )
    made = {}
    for name in sorted(_files(work)):
        if name not in before or (name in _TAKEN and (work / name).read_bytes() != _OLD):
            made.update(read_result(work, name))
    return {"exit": done.returncode, "made": made, "stderr": done.stderr.decode("utf-8")}


def read_result(folder: Path, name: str) -> Dict[str, List[str]]:
    """Reads one file, or each member of an archive as ``archive!member``: mode (not of a manifest) and text, without the time."""
    path = folder / name
    if zipfile.is_zipfile(str(path)):
        with zipfile.ZipFile(str(path)) as archive:
            return {
                name + "!" + item.filename: _entry(
                    item.filename, item.external_attr >> 16, archive.read(item), item.compress_type
                )
                for item in archive.infolist()
            }
    if name.endswith(".tar.gz"):
        with tarfile.open(str(path)) as tar:
            members = [(item, tar.extractfile(item)) for item in tar]
            return {name + "!" + item.name: _entry(item.name, item.mode, data.read()) for item, data in members if data}
    return {name: _entry(name, path.stat().st_mode, path.read_bytes())}


def _entry(name: str, mode: int, data: bytes, method: int = -1) -> List[str]:
    text = _CREATED.sub('"createdOn": "now"', data.decode("utf-8"))
    return ["" if name.endswith("MANIFEST.json") else "%o" % (mode & 0o777), {-1: "", 0: "stored", 8: "deflated"}[method], text]


def _files(folder: Path) -> List[str]:
    found = (os.path.join(root, name) for root, _, names in os.walk(str(folder)) for name in names)
    return [os.path.relpath(path, str(folder)) for path in found]


def _record(model_archiver: str, workflow_archiver: str) -> None:
    os.umask(0o022)
    golden = {}
    for name, arguments in CASES.items():
        with tempfile.TemporaryDirectory() as folder:
            result = run_case([workflow_archiver if name.startswith(WORKFLOW) else model_archiver], arguments, Path(folder))
        golden[name] = {"exit": result["exit"], "made": result["made"]}
    json.dump(golden, sys.stdout, indent=1, sort_keys=True)
    sys.stdout.write("\n")


if __name__ == "__main__":
    _record(sys.argv[1], sys.argv[2])
