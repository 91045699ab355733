"""The worker as a process: how it starts, what it refuses, what it writes where."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from pathlib import Path
from typing import Dict, List, NamedTuple, Optional

import pytest
from workerkit import make_model

from flambeau.worker import process

MAIN = Path(process.__file__).with_name("__main__.py")
LIBRARY = os.environ.get("FLAMBEAU_LIBRARY", "")
COOKIE = "7c1d5b0e-flambeau-backend"  # proto/backend/v1/handshake.go


class Ended(NamedTuple):
    status: int
    handshake: bytes
    stderr: bytes
    stdout: bytes


class Started:
    """A worker's process with the descriptors of docs/protocol.md."""

    def __init__(self, folder: Path, env: Dict[str, str], arguments: Optional[List[str]] = None) -> None:
        sockets = folder.parent / "s"
        sockets.mkdir(exist_ok=True)
        whole = {
            "PATH": os.environ.get("PATH", ""),
            "FLAMBEAU_PLUGIN": COOKIE,
            "FLAMBEAU_MAX_MESSAGE_BYTES": "1000000",
            "PLUGIN_PROTOCOL_VERSIONS": "1",
            "PLUGIN_UNIX_SOCKET_DIR": str(sockets),
        }
        whole.update(env)
        pipes = {name: os.pipe() for name in ("handshake", "stderr", "lifeline", "stdout")}
        theirs = {1: pipes["handshake"][1], 2: pipes["stderr"][1], 3: pipes["lifeline"][0], 4: pipes["stdout"][1]}
        script = "import os, sys\n"
        for target, fd in theirs.items():
            script += "os.dup2(%d, %d, True)\n" % (fd + 100, target)
        script += "os.closerange(5, 300)\nos.execv(sys.argv[1], sys.argv[1:])\n"
        for fd in theirs.values():
            os.dup2(fd, fd + 100, True)
        command = [sys.executable, "-I", "-S", "-c", script, sys.executable] + (arguments or [str(MAIN)])
        self.process = subprocess.Popen(
            command,
            cwd=str(folder),
            env=whole,
            stdin=subprocess.DEVNULL,
            close_fds=False,
            start_new_session=True,
        )
        for fd in theirs.values():
            os.close(fd)
            os.close(fd + 100)
        self.lifeline = pipes["lifeline"][1]
        self._read: Dict[str, bytes] = {}
        self.first_line = threading.Event()
        self._threads = [
            threading.Thread(target=self._drain, args=(name, pipes[name][0]), daemon=True)
            for name in ("handshake", "stderr", "stdout")
        ]
        for thread in self._threads:
            thread.start()

    def _drain(self, name: str, fd: int) -> None:
        data = b""
        while True:
            chunk = os.read(fd, 65536)
            data += chunk
            self._read[name] = data
            if name == "handshake" and (b"\n" in data or not chunk):
                self.first_line.set()
            if not chunk:
                os.close(fd)
                return

    def end(self) -> Ended:
        """Let the lifeline go, as a server that dies does, and give everything that was written."""
        os.close(self.lifeline)
        status = self.process.wait(20)
        for thread in self._threads:
            thread.join(20)
        return Ended(status, self._read["handshake"], self._read["stderr"], self._read["stdout"])


def test_by_hand_it_says_what_it_is(tmp_path: Path) -> None:
    run = subprocess.run([sys.executable, str(MAIN)], cwd=str(tmp_path), capture_output=True, env={}, check=False)
    assert run.returncode == 2
    assert run.stdout == b""
    assert b"worker of the Flambeau model server" in run.stderr
    assert b"FLAMBEAU_PLUGIN" in run.stderr


def test_without_its_library_it_says_where_it_looked(tmp_path: Path) -> None:
    model = make_model(tmp_path / "m", {})
    worker = Started(model, {"FLAMBEAU_LIBRARY": "/nowhere/libflambeau.so"})
    worker.process.wait(20)
    ended = worker.end()
    assert ended.status == 2
    assert ended.handshake == b""
    assert b"worker cannot start: cannot load /nowhere/libflambeau.so" in ended.stderr
    assert b"is the flambeau wheel installed whole?" in ended.stderr


def test_a_file_that_is_no_library(tmp_path: Path) -> None:
    model = make_model(tmp_path / "m", {"lib.so": "not ELF"})
    worker = Started(model, {"FLAMBEAU_LIBRARY": str(model / "lib.so")})
    worker.process.wait(20)
    assert b"no library, or one for another kind of machine" in worker.end().stderr


def test_the_library_of_the_wheel_is_the_default(tmp_path: Path) -> None:
    worker = Started(make_model(tmp_path / "m", {}), {"FLAMBEAU_LIBRARY": ""})
    if worker.process.wait(20) == 2:
        assert b"flambeau/_lib/libflambeau.so" in worker.end().stderr


@pytest.mark.parametrize(
    "module", ["json", "logging", "os", "ctypes", "struct", "io", "importlib", "signal", "frames", "ts", "flambeau"]
)
def test_no_module_of_the_model_is_imported_by_the_start(tmp_path: Path, module: str) -> None:
    """Neither from the working folder nor, with an empty entry, from PYTHONPATH (os and io are loaded before any code runs)."""
    model = make_model(tmp_path / "m", {module + ".py": "raise SystemExit('the model %s was imported')" % module})
    env = {"FLAMBEAU_LIBRARY": "/nowhere.so"}
    if module not in ("os", "io"):
        env["PYTHONPATH"] = os.pathsep + "/nowhere"
    worker = Started(model, env)
    assert worker.process.wait(20) == 2
    assert b"cannot load /nowhere.so" in worker.end().stderr


def test_it_imports_little() -> None:
    """A bare interpreter must do, and each import is time at every start and a name that a model cannot have."""
    script = "import sys; before = set(sys.modules); import flambeau.worker.model, flambeau.worker.process, ts.context, "
    script += (
        "ts.metrics.metric_cache_yaml_impl, ts.utils.util; print(*sorted({m.split('.')[0] for m in set(sys.modules) - before}))"
    )
    env = {"PYTHONPATH": str(MAIN.parents[2])}
    out = subprocess.run([sys.executable, "-S", "-c", script], env=env, stdout=subprocess.PIPE, check=True, text=True).stdout
    loaded = set(out.split())
    if sys.version_info[:2] == (3, 9):
        loaded.discard("typing")  # there importlib.util imports it
    assert not loaded & {
        "torch",
        "yaml",
        "psutil",
        "numpy",
        "typing",
        "inspect",
        "socket",
        "uuid",
        "asyncio",
        "dataclasses",
        "pathlib",
    }


needs_library = pytest.mark.skipif(not LIBRARY, reason="FLAMBEAU_LIBRARY is not set")


@needs_library
def test_the_handshake_line_and_nothing_else(tmp_path: Path) -> None:
    noisy = "import os\nprint('noise')\nos.write(1, b'|1|1|tcp|127.0.0.1:1|grpc\\n')\n"
    model = make_model(tmp_path / "m", {"json.py": noisy, "sitecustomize.py": noisy, "logging.py": noisy})
    worker = Started(model, {"FLAMBEAU_LIBRARY": LIBRARY})
    assert worker.first_line.wait(30)
    ended = worker.end()
    fields = ended.handshake.decode().split("|")
    assert ended.handshake.count(b"\n") == 1
    assert fields[:3] == ["1", "1", "unix"]
    assert fields[3].startswith(str(tmp_path / "s"))
    assert fields[4].strip() == "grpc"
    assert (ended.stdout, ended.stderr) == (b"", b"")
    assert ended.status == -9, "a worker whose server is gone kills its process group"


@needs_library
def test_output_before_the_load_goes_to_the_log(tmp_path: Path) -> None:
    """Only what the interpreter itself runs before the worker could still write to the handshake's descriptor."""
    hook = """
import os, threading, time
first = os.fstat(1)
def late():
    while os.path.samestat(os.fstat(1), first):
        time.sleep(0.001)
    os.write(1, b"late\\n")
    print("printed")
threading.Thread(target=late, daemon=True).start()
"""
    model = make_model(tmp_path / "m", {"hooks/sitecustomize.py": hook})
    worker = Started(model, {"FLAMBEAU_LIBRARY": LIBRARY, "PYTHONPATH": str(model / "hooks")})
    assert worker.first_line.wait(30)
    for _ in range(1000):
        if b"printed" in worker._read.get("stdout", b""):
            break
        threading.Event().wait(0.01)
    ended = worker.end()
    assert ended.handshake.count(b"\n") == 1
    assert ended.stdout == b"late\nprinted\n"


@needs_library
def test_a_wrong_cookie_is_refused(tmp_path: Path) -> None:
    worker = Started(make_model(tmp_path / "m", {}), {"FLAMBEAU_LIBRARY": LIBRARY, "FLAMBEAU_PLUGIN": "guessed"})
    assert worker.process.wait(20) == 2
    ended = worker.end()
    assert ended.handshake == b""
    assert b"worker cannot start: libflambeau could not start: " in ended.stderr


@pytest.mark.parametrize(("code", "wanted"), [(None, 0), (0, 0), (4, 4), (-1, 255), (256, 0), ("text", 1)])
def test_exit_status(code: object, wanted: int) -> None:
    assert process.exit_status(SystemExit(code)) == wanted
