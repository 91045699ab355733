"""Reads the cases: one folder each, with a case.json and the files of its archives."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

CASE_KEYS = "clause archive archives settings register requests needs floats differs"
ARCHIVE_KEYS = "name version handler model_file serialized extra config requirements runtime format register differs"
REQUEST_KEYS = (
    "method path port headers text json base64 file repeat form parts limit until keep_lines pick mask torch_bytes differs"
)


class CaseError(Exception):
    """A case that cannot be read; the text says where and why."""


class Case:
    """One clause of the handler contract: archives to register, requests to send."""

    def __init__(self, folder: Path) -> None:
        """Raises CaseError."""
        self.folder = folder
        self.name = folder.name
        where = folder / "case.json"
        try:
            fields: dict[str, Any] = json.loads(where.read_text(encoding="utf-8"))
        except (OSError, ValueError) as why:
            raise CaseError("%s: %s" % (where, why)) from why
        _only(where, fields, CASE_KEYS)
        if not fields.get("clause"):
            raise CaseError("%s: a case says its clause" % where)
        self.clause = str(fields["clause"])
        self.needs: list[str] = fields.get("needs", [])
        self.settings: dict[str, str] = fields.get("settings", {})
        self.floats = bool(fields.get("floats"))
        self.archives: list[dict[str, Any]] = fields.get("archives") or [fields.get("archive", {})]
        for archive in self.archives:
            _only(where, archive, ARCHIVE_KEYS)
            archive.setdefault("name", self.name)
            archive.setdefault("version", "1.0")
            archive.setdefault("format", "default")
            archive.setdefault("handler", "handler.py")
            archive.setdefault("register", fields.get("register", {}))
            archive.setdefault("differs", fields.get("differs"))
        # A list within the list is sent at the same time.
        self.steps: list[list[dict[str, Any]]] = [s if isinstance(s, list) else [s] for s in fields.get("requests", [])]
        for request in self.requests:
            _only(where, request, REQUEST_KEYS)
            request.setdefault("path", "/predictions/" + self.name)
            request.setdefault("port", "inference")

    @property
    def requests(self) -> list[dict[str, Any]]:
        """All the requests, in the order in which answers are numbered."""
        return [request for step in self.steps for request in step]

    @property
    def expected(self) -> list[dict[str, Any]]:
        """What there is an answer to, in order: registrations, then requests."""
        return self.archives + self.requests

    def label(self, index: int) -> str:
        """What the answer with this number answers, in words."""
        if index < len(self.archives):
            return "register %(name)s %(version)s" % self.archives[index]
        request = self.requests[index - len(self.archives)]
        method = request.get("method") or ("GET" if not _has_body(request) else "POST")
        return "request %d: %s %s" % (index - len(self.archives) + 1, method, request["path"])


def _has_body(request: dict[str, Any]) -> bool:
    return any(key in request for key in ("text", "json", "base64", "file", "repeat", "form", "parts"))


def _only(where: Path, fields: dict[str, Any], known: str) -> None:
    unknown = sorted(set(fields) - set(known.split()))
    if unknown:
        raise CaseError("%s: unknown keys %s; known are: %s" % (where, ", ".join(unknown), known))


def read_all(folder: Path) -> list[Case]:
    """All the cases below a folder, by name. Raises CaseError."""
    return [Case(sub) for sub in sorted(folder.iterdir()) if sub.is_dir() and sub.name != "__pycache__"]
