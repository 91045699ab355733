"""A leader in the test's own process, over a transport in memory; its torchrun has a few lines, its ranks are real processes."""

from __future__ import annotations

import contextlib
import json
import os
import queue
import shutil
import signal
import struct
import tempfile
import textwrap
import threading
import time
from pathlib import Path
from typing import Any, Callable, Dict, List, Optional, Tuple

import pytest

from flambeau.parallel.leader import Leader, Plan
from flambeau.worker import library, logs

LIMIT = 30.0  # seconds that anything may take on a busy machine

# Starts the ranks as torchrun does: each in a session of its own, with the variables; ends when all have, or when one fails.
TORCHRUN = """
import argparse, os, subprocess, sys

def main():
    parser = argparse.ArgumentParser()
    for name in ("--log-dir", "--nnodes", "--rdzv-id"):
        parser.add_argument(name)
    parser.add_argument("--nproc-per-node", type=int)
    parser.add_argument("command", nargs=argparse.REMAINDER)
    given = parser.parse_args()
    print("torchrun starts", given.nproc_per_node)
    sys.stdout.flush()
    ranks = []
    for rank in range(given.nproc_per_node):
        env = dict(os.environ, LOCAL_RANK=str(rank), RANK=str(rank), WORLD_SIZE=str(given.nproc_per_node))
        ranks.append(subprocess.Popen([sys.executable, "-u"] + given.command, env=env, start_new_session=True))
    for rank in ranks:
        if rank.wait() != 0:
            sys.exit(1)
"""


def wait_for(what: Callable[[], Any]) -> Any:
    """Ask until the answer is true, and give it."""
    end = time.monotonic() + LIMIT
    while not what():
        assert time.monotonic() < end, "it did not happen"
        threading.Event().wait(0.01)
    return what()


class QueueTransport:
    """Gives the jobs that a test puts in, and keeps what comes back as (kind, data, last)."""

    def __init__(self) -> None:
        self._jobs: queue.Queue[library.Job] = queue.Queue()
        self._changed = threading.Condition()
        self._given: Dict[int, List[Tuple[bytes, bool]]] = {}
        self._last = 0

    def take(self) -> library.Job:
        return self._jobs.get(timeout=2 * LIMIT)

    def give(self, id: int, data: bytes, last: bool) -> None:
        with self._changed:
            assert not any(over for _, over in self._given[id]), "the job has had its last answer"
            self._given[id].append((data, last))
            self._changed.notify_all()

    def put(self, kind: int, data: bytes = b"") -> int:
        """Have a job done; gives its number."""
        with self._changed:
            self._last += 1
            self._given[self._last] = []
        self._jobs.put(library.Job(kind, self._last, memoryview(data)))
        return self._last

    def answers(self, id: int) -> List[bytes]:
        """All the answers to a job, once the last one is there."""
        with self._changed:
            assert self._changed.wait_for(lambda: any(last for _, last in self._given[id]), LIMIT), "no answer to job %d" % id
            return [data for data, _ in self._given[id]]

    def answered(self, id: int) -> bool:
        with self._changed:
            return any(last for _, last in self._given[id])


class Stage:
    """Runs one leader."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        packages = folder / "packages" / "torch" / "distributed"
        packages.mkdir(parents=True)
        for package in (packages, packages.parent):
            (package / "__init__.py").touch()
        (packages / "run.py").write_text(TORCHRUN)
        monkeypatch.setenv("PYTHONPATH", str(folder / "packages"))
        monkeypatch.syspath_prepend(str(folder / "packages"))
        self.model = folder / "model"
        self.model.mkdir()
        self.model.joinpath("json.py").write_text("raise RuntimeError('the model hides a module of Python')")
        monkeypatch.chdir(self.model)
        self.ended: List[int] = []  # statuses with which the leader ended its process
        self.transport = QueueTransport()
        self.folder = tempfile.mkdtemp(prefix="fl-ranks-")  # a socket's path must be short
        self.files = [folder / "stdout", folder / "stderr"]
        self.leader: Optional[Leader] = None
        self._thread: Optional[threading.Thread] = None

    def start(self, handler: str, ranks: int = 2, batches: str = "all") -> None:
        """Run a leader for a handler, in a thread."""
        self.model.joinpath("parallel_handler.py").write_text(textwrap.dedent(handler))
        outputs = [
            logs.MarkedOutput(os.open(str(file), os.O_WRONLY | os.O_CREAT | os.O_APPEND), logs.Scope()) for file in self.files
        ]
        plan = Plan([batches, str(ranks), "--nnodes", "1", "--nproc-per-node", str(ranks), "--rdzv-id", "m_29500"])
        self.leader = Leader(self.transport, plan, self.folder, outputs, self.ended.append)
        self._thread = threading.Thread(target=self.leader.serve)
        self._thread.start()

    def load(self) -> Dict[str, Any]:
        """Load the model, and give the answer."""
        request = {
            "model_name": "m",
            "model_version": "1.0",
            "model_dir": str(self.model),
            "handler": "parallel_handler.py",
            "gpu": None,
        }
        job = self.transport.put(library.LOAD, json.dumps(request).encode())
        answer: Dict[str, Any] = json.loads(self.transport.answers(job)[-1])
        return answer

    def batch(self, body: bytes) -> int:
        """Have a batch of one request done; gives the number of the job."""
        text = lambda value: struct.pack("<I", len(value)) + value  # noqa: E731
        item = text(b"id-7") + struct.pack("<qII", 0, 0, 1) + text(b"body") + text(b"") + struct.pack("<Q", len(body)) + body
        return self.transport.put(library.BATCH, struct.pack("<BBHIQ", 1, 0, 0, 1, 77) + item)

    def ask(self, body: bytes) -> List[bytes]:
        """The bodies of all the answers to a batch of one request; a failure is its three texts."""
        out = []
        for frame in self.transport.answers(self.batch(body)):
            _, _, _, count, batch = struct.unpack_from("<BBHIQ", frame)
            assert (count, batch) == (1, 77)
            outcome, _, headers = struct.unpack_from("<BII", frame, 16)
            at = 25
            for _ in range(2 * headers):
                at += 4 + struct.unpack_from("<I", frame, at)[0]
            out.append(frame[at + 8 :] if outcome == 0 else b"FAILED" + frame[at:])
        return out

    def written(self) -> str:
        """All that went to stdout."""
        return self.files[0].read_text() if self.files[0].exists() else ""

    def noted(self, name: str) -> str:
        """What is in a file of the model's folder; nothing when it is not there yet."""
        file = self.model / name
        return file.read_text() if file.exists() else ""

    def processes(self) -> List[int]:
        """Those that were started with this stage's folder on their command line, zombies apart."""
        found = []
        for entry in os.listdir("/proc"):
            if entry.isdigit() and int(entry) != os.getpid():
                try:
                    command = Path("/proc", entry, "cmdline").read_bytes()
                except OSError:
                    continue
                if self.folder.encode() in command:
                    found.append(int(entry))
        return found

    def stop(self) -> None:
        """Have the leader stop, and wait for it."""
        self.transport.put(library.STOP)
        assert self._thread is not None
        self._thread.join(LIMIT)
        assert not self._thread.is_alive()

    def clear(self) -> None:
        """End everything, whatever the test did."""
        if self._thread is not None and self._thread.is_alive():
            self.stop()
        if self.leader is not None:
            self.leader.drop_lifeline()
        for pid in self.processes():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        wait_for(lambda: not self.processes())
        shutil.rmtree(self.folder)
