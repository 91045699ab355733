"""What the tests of the worker share: the server's end of the frames, a transport in memory, models in folders."""

from __future__ import annotations

import json
import os
import struct
from pathlib import Path
from typing import Any, Dict, List, NamedTuple, Optional, Sequence, Tuple

from flambeau.worker import library, logs
from flambeau.worker.loop import Worker

HEAD = struct.Struct("<BBHIQ")


class Request(NamedTuple):
    """One request of a batch, as a test writes it."""

    id: str = "id-0"
    parts: Sequence[Tuple[str, str, bytes]] = ()
    headers: Sequence[Tuple[str, str]] = ()
    deadline: int = 0


class Result(NamedTuple):
    """One result, as the server reads it."""

    outcome: int
    status: int
    headers: List[Tuple[str, str]]
    body: bytes = b""
    reason: str = ""
    message: str = ""
    detail: str = ""


def body(data: bytes, content_type: str = "", id: str = "id-0", headers: Sequence[Tuple[str, str]] = ()) -> Request:
    """A request with a body, and nothing else."""
    return Request(id, [("body", content_type, data)], headers)


def text(value: str) -> bytes:
    data = value.encode("utf-8", "surrogatepass")
    return struct.pack("<I", len(data)) + data


def encode_batch(batch_id: int, requests: Sequence[Request], kind: int = 1) -> bytes:
    """A batch frame, written by its description in docs/protocol.md."""
    out = [HEAD.pack(kind, 0, 0, len(requests), batch_id)]
    for request in requests:
        out.append(text(request.id) + struct.pack("<q", request.deadline))
        out.append(struct.pack("<I", len(request.headers)))
        out.extend(text(name) + text(value) for name, value in request.headers)
        out.append(struct.pack("<I", len(request.parts)))
        for name, content_type, data in request.parts:
            out.append(text(name) + text(content_type) + struct.pack("<Q", len(data)) + data)
    return b"".join(out)


def decode_results(frame: bytes) -> Tuple[int, int, List[Result]]:
    """Kind, batch id and results of a frame from the worker, read by its description in docs/protocol.md."""
    kind, flags, zero, count, batch_id = HEAD.unpack_from(frame)
    assert (flags, zero) == (0, 0)
    at = HEAD.size

    def take(size: int) -> bytes:
        nonlocal at
        at += size
        assert at <= len(frame)
        return frame[at - size : at]

    def string() -> str:
        return take(struct.unpack("<I", take(4))[0]).decode("utf-8")

    results = []
    for _ in range(count):
        outcome, status, headers = struct.unpack("<BII", take(9))
        fields = [(string(), string()) for _ in range(headers)]
        if outcome == 0:
            results.append(Result(0, status, fields, body=take(struct.unpack("<Q", take(8))[0])))
        else:
            results.append(Result(1, status, fields, reason=string(), message=string(), detail=string()))
    assert at == len(frame), "bytes are left over"
    return kind, batch_id, results


class MemoryTransport:
    """Gives the worker prepared jobs, and keeps what it gives back as (job id, data, last)."""

    def __init__(self, jobs: Sequence[Tuple[int, bytes]] = ()) -> None:
        self.jobs = list(jobs)
        self.given: List[Tuple[int, bytes, bool]] = []
        self._taken = 0

    def take(self) -> library.Job:
        if not self.jobs:
            return library.Job(library.STOP, 0, memoryview(b""))
        kind, data = self.jobs.pop(0)
        self._taken += 1
        return library.Job(kind, self._taken, memoryview(data))

    def give(self, id: int, data: bytes, last: bool) -> None:
        assert isinstance(data, bytes), "the C function takes bytes"
        self.given.append((id, data, last))


class Session:
    """A worker over a MemoryTransport, driven job by job."""

    def __init__(self) -> None:
        self.transport = MemoryTransport()
        self.scope = logs.Scope()
        self.worker = Worker(self.transport, self.scope)
        self._batch = 100

    def load(self, model_dir: Path, handler: str, **fields: Any) -> Dict[str, Any]:
        """Load a model and give the answer."""
        request = {
            "model_name": "m",
            "model_version": "1.0",
            "model_dir": str(model_dir),
            "handler": handler,
            "envelope": "",
            "gpu": None,
            "batch_size": 4,
            "limit_max_image_pixels": True,
            "max_response_bytes": 0,
        }
        request.update(fields)
        answer: Dict[str, Any] = json.loads(self.job(library.LOAD, json.dumps(request).encode())[-1][1])
        return answer

    def run(self, *requests: Request) -> List[Result]:
        """Run a batch and give its results; pieces are forgotten."""
        return self.frames(*requests)[-1][1]

    def frames(self, *requests: Request) -> List[Tuple[int, List[Result]]]:
        """Run a batch and give the kind and the results of each frame that came."""
        self._batch += 1
        out = []
        given = self.job(library.BATCH, encode_batch(self._batch, requests))
        for _, data, last in given:
            kind, batch_id, results = decode_results(data)
            assert batch_id == self._batch
            assert len(results) == len(requests), "the library refuses a frame with another number of results"
            assert last == (kind == 2)
            out.append((kind, results))
        return out

    def job(self, kind: int, data: bytes) -> List[Tuple[int, bytes, bool]]:
        """Do one job; everything that was given for it."""
        seen = len(self.transport.given)
        self.transport.jobs.append((kind, data))
        self.worker.serve()
        given = self.transport.given[seen:]
        assert [last for _, _, last in given] == [False] * (len(given) - 1) + [True], "exactly the last answer ends the job"
        return given


def make_model(folder: Path, files: Dict[str, str], handler: Optional[str] = None, **model: Any) -> Path:
    """Write a model's folder, with a manifest when `handler` is given, and go there."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content, encoding="utf-8")
    if handler is not None:
        path = folder / "MAR-INF" / "MANIFEST.json"
        path.parent.mkdir(exist_ok=True)
        manifest = {"runtime": "python", "model": dict(modelName="m", modelVersion="1.0", handler=handler, **model)}
        path.write_text(json.dumps(manifest), encoding="utf-8")
    os.chdir(folder)
    return folder
