"""Sends one request as it is written in a case, and takes the answer as it comes: chunk by chunk, header by header."""

from __future__ import annotations

import base64
import contextlib
import json
import socket
import time
from pathlib import Path
from typing import Any
from urllib.parse import quote_plus

BOUNDARY = "corpus-boundary-3f1c"
CONNECT_LIMIT = 10.0  # seconds
DEFAULT_LIMIT = 60.0  # seconds for a whole answer
LATE = "no answer in time"


class Answer:
    """What came back: `outcome` is "answered", or what the connection did in place of an answer."""

    def __init__(self, outcome: str) -> None:
        self.outcome = outcome
        self.status = 0
        self.headers: list[tuple[str, str]] = []
        self.body = b""
        self.pieces: list[bytes] | None = None  # the chunks of a chunked answer
        self.seconds = 0.0

    def header(self, name: str) -> str | None:
        """The first value of a header, in any spelling of its name."""
        return next((value for key, value in self.headers if key.lower() == name), None)


def content(part: dict[str, Any], folders: list[Path]) -> bytes | None:
    """The bytes that a request or a part of a multipart body carries, None for none. Files are looked up in `folders`."""
    if "text" in part:
        return str(part["text"]).encode("utf-8")
    if "json" in part:
        return json.dumps(part["json"], ensure_ascii=False).encode("utf-8")
    if "base64" in part:
        return base64.b64decode(part["base64"])
    if "repeat" in part:
        return str(part["repeat"]["text"]).encode("utf-8") * int(part["repeat"]["count"])
    if "file" in part:
        for folder in folders:
            if (folder / part["file"]).is_file():
                return Path(folder / part["file"]).read_bytes()
        raise FileNotFoundError("%s is in none of: %s" % (part["file"], ", ".join(map(str, folders))))
    return None


def payload(request: dict[str, Any], folders: list[Path]) -> tuple[bytes | None, str | None]:
    """The body of a request and the content type that goes with it."""
    if "form" in request:
        fields = ["%s=%s" % (quote_plus(name), quote_plus(value)) for name, value in request["form"]]
        return "&".join(fields).encode("ascii"), "application/x-www-form-urlencoded"
    if "parts" in request:
        return multipart(request["parts"], folders), "multipart/form-data; boundary=" + BOUNDARY
    return content(request, folders), "application/json" if "json" in request else None


def multipart(parts: list[dict[str, Any]], folders: list[Path]) -> bytes:
    """A multipart body. A part has a `name`, perhaps a `filename` and a `type`, and its content as a request has it."""
    lines: list[str | bytes] = []
    for part in parts:
        disposition = 'form-data; name="%s"' % part["name"]
        if "filename" in part:
            disposition += '; filename="%s"' % part["filename"]
        lines += ["--" + BOUNDARY, "Content-Disposition: " + disposition]
        if "type" in part:
            lines.append("Content-Type: " + part["type"])
        lines += ["", content(part, folders) or b""]
    lines += ["--" + BOUNDARY + "--", ""]
    return b"\r\n".join(line if isinstance(line, bytes) else line.encode("utf-8") for line in lines)


def encode(request: dict[str, Any], address: tuple[str, int], folders: list[Path]) -> bytes:
    """The bytes of a request."""
    body, content_type = payload(request, folders)
    headers = [(name, value) for name, value in request.get("headers", [])]
    given = {name.lower() for name, _ in headers}
    if "host" not in given:
        headers.insert(0, ("Host", "%s:%d" % address))
    if content_type and "content-type" not in given:
        headers.append(("Content-Type", content_type))
    if body is not None:
        headers.append(("Content-Length", str(len(body))))
    method = request.get("method", "GET" if body is None else "POST")
    head = "%s %s HTTP/1.1\r\n" % (method, request["path"]) + "".join("%s: %s\r\n" % field for field in headers) + "\r\n"
    return head.encode("utf-8") + (body or b"")


def ask(request: dict[str, Any], address: tuple[str, int], folders: list[Path]) -> Answer:
    """Send a request on a connection of its own and read its answer to the end."""
    began = time.monotonic()
    answer = _ask(encode(request, address, folders), address, float(request.get("limit", DEFAULT_LIMIT)))
    answer.seconds = time.monotonic() - began
    return answer


def _ask(data: bytes, address: tuple[str, int], limit: float) -> Answer:
    answer = Answer(LATE)
    try:
        with socket.create_connection(address, timeout=CONNECT_LIMIT) as connection:
            # A server may refuse a body before it has all of it; its answer says so.
            with contextlib.suppress(BrokenPipeError, ConnectionResetError):
                connection.sendall(data)
            _Reader(connection, time.monotonic() + limit).answer(answer)
            answer.outcome = "answered"
    except ConnectionRefusedError:
        answer.outcome = "connection refused"
    except socket.timeout:
        pass
    except (EOFError, OSError):
        answer.outcome = "connection closed"
    except ValueError as why:
        answer.outcome = "not HTTP: %s" % why
    return answer


class _Reader:
    """Reads an answer from a socket until a moment of the monotonic clock."""

    def __init__(self, connection: socket.socket, until: float) -> None:
        self._connection = connection
        self._until = until
        self._have = b""

    def answer(self, answer: Answer) -> None:
        while answer.status < 200:  # a status below 200 announces another
            answer.status = int(self._line().split(None, 2)[1])
            answer.headers = []
            for line in iter(self._line, b""):
                name, _, value = line.decode("latin-1").partition(":")
                answer.headers.append((name, value.strip()))
        if "chunked" in (answer.header("transfer-encoding") or "").lower():
            answer.pieces = []
            for size in iter(self._chunk_size, 0):
                answer.pieces.append(self._exactly(size))
                answer.body += answer.pieces[-1]
                self._line()
            self._line()
        elif answer.header("content-length") is not None:
            answer.body = self._exactly(int(answer.header("content-length") or 0))
        elif answer.status not in (204, 304):
            answer.body = self._rest()

    def _chunk_size(self) -> int:
        return int(self._line().split(b";")[0], 16)

    def _line(self) -> bytes:
        while b"\r\n" not in self._have:
            self._more()
        line, _, self._have = self._have.partition(b"\r\n")
        return line

    def _exactly(self, size: int) -> bytes:
        parts, missing = [self._have], size - len(self._have)
        while missing > 0:
            self._have = b""
            self._more()
            parts.append(self._have)
            missing -= len(self._have)
        whole = b"".join(parts)
        self._have = whole[size:]
        return whole[:size]

    def _rest(self) -> bytes:
        try:
            while True:
                self._more()
        except EOFError:
            return self._have

    def _more(self) -> None:
        left = self._until - time.monotonic()
        if left <= 0:
            raise socket.timeout
        self._connection.settimeout(left)
        received = self._connection.recv(1 << 16)
        if not received:
            raise EOFError
        self._have += received
