"""What `flambeau run` shows: the answer on stdout, and on stderr what went in, what came out and how long it took."""

from __future__ import annotations

import json
import os
import sys
from http import HTTPStatus

from flambeau.runner.watch import STEPS
from flambeau.worker.frames import Answer

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Dict, List, Sequence, Union

    from flambeau.worker.frames import Failure

    Results = Sequence[Union[Answer, Failure]]

_ORDER = ("input", "handle") + STEPS + ("encode",)
_LABEL = 12


class Output:
    """The answer's way to stdout: pieces as they come, and the rest of each request's answer."""

    def __init__(self, fd: int, head: bool, quiet: bool) -> None:
        """`fd` is the stdout of the command; with `head` status and headers go first; `quiet` writes none of it."""
        self._fd = fd
        self._head = head
        self._quiet = quiet
        self._terminal = os.isatty(fd)
        self._begun = False

    def piece(self, results: Results) -> None:
        """Write an intermediate answer: that of the first request."""
        if isinstance(results[0], Answer):
            if not self._begun:
                self._begin(results[0])
            self._write(bytes(results[0].body))

    def last(self, results: Results) -> None:
        """Write the answers, each on lines of its own when there are several."""
        for index, result in enumerate(results):
            if index or not self._begun:
                self._begin(result)
            if isinstance(result, Answer):
                data = bytes(result.body)
                separated = (self._terminal or len(results) > 1) and not data.endswith(b"\n")
                self._write(data + (b"\n" if separated else b""))

    def whole(self, data: bytes) -> None:
        """Write something else than an answer, whatever `quiet` says."""
        while data:
            try:
                data = data[os.write(self._fd, data) :]
            except BrokenPipeError:
                return  # whoever read it has seen enough

    def _begin(self, result: Union[Answer, Failure]) -> None:
        self._begun = True
        if self._head:
            lines = [_status_line(status_of(result))]
            if isinstance(result, Answer):
                lines += ["%s: %s" % (_text(name), _text(value)) for name, value in result.headers]
            self._write(("\n".join(lines) + "\n\n").encode("utf-8", "surrogateescape"))

    def _write(self, data: bytes) -> None:
        if self._quiet:
            return
        if self._terminal and not _is_text(data):
            note = "(%s, no text: send stdout to a file to have the answer)\n" % _count(len(data), "bytes")
            self.whole(note.encode("ascii"))
            return
        self.whole(data)


class Report:
    """What is known of a run, for people and for programs. Times are in seconds here and in milliseconds in what is shown."""

    def __init__(self, load: Dict[str, Any]) -> None:
        self._load = load  # the fields of the LoadRequest
        self.handler = ""
        self.rows: List[Dict[str, Dict[str, Any]]] = []
        self.headers: List[Dict[str, Any]] = []
        self.pieces: List[Results] = []
        self.results: Results = []
        self.metrics: List[str] = []
        self.once: Dict[str, float] = {}  # step -> time, of what happens once
        self.runs: List[Dict[str, float]] = []  # the same, of each run
        self.failure: Dict[str, Any] = {}  # why the model could not be loaded

    def text(self) -> str:
        """The report for people."""
        lines: List[str] = []
        _add(lines, "model", ["%s %s, in %s" % (self._load["model_name"], self._load["model_version"], self._load["model_dir"])])
        _add(lines, "handler", [self.handler or self._load["handler"]])
        _add(lines, "python", ["%s (%s)" % (sys.executable, sys.version.split()[0])])
        for index, row in enumerate(self.rows):
            _add(lines, "row %d" % index, ["%s: %s" % (name, _said(value)) for name, value in row.items()] or ["(empty)"])
        if self.pieces:
            _add(lines, "pieces", ["%d before the end" % len(self.pieces)])
        for index, result in enumerate(self.results):
            _add(lines, "answer %d" % index, [_result_line(result)])
        _add(lines, "metrics", self.metrics)
        _add(lines, "memory", ["%.0f MiB at most" % (peak_bytes() / (1 << 20))])
        _add(lines, "times", self._times())
        return "\n".join(lines) + "\n"

    def _times(self) -> List[str]:
        lines = ["%-12s %10.2f ms" % (name, value * 1000) for name, value in self.once.items()]
        if len(self.runs) > 1:
            lines.append("%-12s %10s    %10s %10s %10s" % ("", "first", "min", "median", "max"))
        for name in _ORDER:
            values = [run[name] * 1000 for run in self.runs if name in run]
            if not values:
                continue
            line = "%-12s %10.2f ms" % (("  " if name in STEPS else "") + name, values[0])
            if len(values) > 1:
                rest = sorted(values[1:])
                line += " %10.2f %10.2f %10.2f" % (rest[0], rest[len(rest) // 2], rest[-1])
            lines.append(line)
        return lines

    def object(self) -> Dict[str, Any]:
        """The report for programs: an object for JSON."""
        model = {key: self._load[key] for key in ("model_name", "model_version", "model_dir", "handler", "gpu")}
        report: Dict[str, Any] = {
            "model": dict(model, entry=self.handler or None, python=sys.executable),
            "rows": self.rows,
            "headers": self.headers,
            "answers": [self._answer(index, result) for index, result in enumerate(self.results)],
            "metrics": self.metrics,
            "peak_memory_bytes": peak_bytes(),
            "times_ms": _milliseconds(self.once),
            "runs_ms": [_milliseconds(run) for run in self.runs],
        }
        if self.failure:
            report["load_failure"] = {"message": self.failure["message"], "traceback": self.failure["detail"]}
        return report

    def _answer(self, index: int, result: Union[Answer, Failure]) -> Dict[str, Any]:
        if not isinstance(result, Answer):
            failed = {"status": status_of(result), "reason": result.reason, "message": result.message, "traceback": result.detail}
            return {"failure": failed}
        answer: Dict[str, Any] = {"status": status_of(result), "headers": [[_text(n), _text(v)] for n, v in result.headers]}
        answer.update(_body(bytes(result.body)))
        pieces = [piece[index] for piece in self.pieces]
        if pieces:
            answer["pieces"] = [_body(bytes(piece.body)) for piece in pieces if isinstance(piece, Answer)]
        return answer


def status_of(result: Union[Answer, Failure]) -> int:
    """The HTTP status that a client would see."""
    if result.status:
        return result.status
    return 200 if isinstance(result, Answer) else 500


def peak_bytes() -> int:
    """The most memory that this process had at once."""
    import resource

    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def dumps(report: Dict[str, Any]) -> bytes:
    """The object as text."""
    return (json.dumps(report, indent=2, default=str) + "\n").encode("utf-8", "backslashreplace")


def _add(lines: List[str], label: str, values: List[str]) -> None:
    for value in values:
        lines.append("%-*s %s" % (_LABEL, label, value))
        label = ""


def _said(value: Dict[str, Any]) -> str:
    size = _count(value["size"], value["unit"]) + ", " if "size" in value else ""
    return "%s, %s%s" % (value["type"], size, value["preview"])


def _count(number: int, unit: str) -> str:
    """A number of things, whose name in the plural is `unit`: "1 key", "2 keys"."""
    return "%d %s" % (number, unit[:-1] if number == 1 else unit)


def _result_line(result: Union[Answer, Failure]) -> str:
    if isinstance(result, Answer):
        return "%s, %s" % (_status_line(status_of(result)), _count(len(result.body), "bytes"))
    return "%s: %s" % (_status_line(status_of(result)), result.message)


def _status_line(status: int) -> str:
    try:
        return "HTTP %d %s" % (status, HTTPStatus(status).phrase)
    except ValueError:
        return "HTTP %d" % status


def _body(data: bytes) -> Dict[str, str]:
    if _is_text(data):
        return {"body": data.decode("utf-8")}
    import base64

    return {"body_base64": base64.b64encode(data).decode("ascii")}


def _is_text(data: bytes) -> bool:
    try:
        data.decode("utf-8")
    except UnicodeDecodeError:
        return False
    return b"\0" not in data


def _text(data: bytes) -> str:
    return data.decode("utf-8", "surrogateescape")


def _milliseconds(times: Dict[str, float]) -> Dict[str, float]:
    return {name: round(value * 1000, 3) for name, value in times.items()}
