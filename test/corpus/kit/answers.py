"""Brings answers into a form that can be compared and recorded, and says in what two of them differ."""

from __future__ import annotations

import base64
import hashlib
import json
import math
import re
from typing import Any

from kit.client import Answer

RECORD_WHOLE = 4096  # bytes of a body up to which it is recorded as it is, and not by its digest
TOLERANCE = {"rel_tol": 1e-4, "abs_tol": 1e-6}
# Headers that differ by nature, and those that Flambeau adds of its own.
LEFT_OUT = ("date", "content-length", "x-request-id", "x-flambeau-")
MASKED_ID = "<request id>"
MISSING = "<missing>"


def plain(answer: Answer, request: dict[str, Any]) -> dict[str, Any]:
    """An answer as JSON: its outcome, status, headers and body, without what changes with each request.

    `request` says what else is left out: keep_lines (an expression that lines of the body have to contain), pick (paths into
    a JSON body), mask (pairs of an expression and what takes its place).
    """
    if answer.outcome == "connection closed" and answer.pieces:  # in the middle: what had come so far counts
        return {"outcome": answer.outcome, "status": answer.status, "pieces": [_body(p, request, None) for p in answer.pieces]}
    if answer.outcome != "answered":
        return {"outcome": answer.outcome}
    headers = sorted([name.lower(), value] for name, value in answer.headers if not name.lower().startswith(LEFT_OUT))
    result: dict[str, Any] = {"status": answer.status, "headers": headers}
    request_id = answer.header("x-request-id")
    if request_id is not None:
        result["request id"] = True
    length = answer.header("content-length")
    if length is not None and int(length) != len(answer.body):
        result["content-length"] = length
    bodies = [answer.body] if answer.pieces is None else answer.pieces
    shown = [_body(body, request, request_id) for body in bodies]
    if answer.pieces is None:
        result["body"] = shown[0]
    else:
        result["pieces"] = shown
    return result


def _body(body: bytes, request: dict[str, Any], request_id: str | None) -> Any:
    if request.get("torch_bytes") and body.startswith(b"PK"):
        return {"torch.save": hashlib.sha256(body).hexdigest()}
    if len(body) > RECORD_WHOLE and "pick" not in request and "keep_lines" not in request:
        return {"sha256": hashlib.sha256(body).hexdigest(), "size": len(body)}
    try:
        text = body.decode("utf-8")
    except UnicodeDecodeError:
        return {"base64": base64.b64encode(body).decode("ascii")}
    if request_id:
        text = text.replace(request_id, MASKED_ID)
    if "pick" in request:
        return _pick(text, request["pick"])
    if "keep_lines" in request:
        text = "\n".join(sorted(line for line in text.splitlines() if re.search(request["keep_lines"], line)))
    for expression, replacement in request.get("mask", []):
        text = re.sub(expression, replacement, text)
    return text


def _pick(text: str, paths: list[str]) -> Any:
    try:
        whole = json.loads(text)
    except ValueError:
        return text
    picked = {}
    for path in paths:
        value = whole
        for step in path.split("."):
            try:
                value = value[int(step)] if isinstance(value, list) else value[step]
            except (LookupError, TypeError, ValueError):
                value = MISSING
                break
        picked[path] = value
    return picked


def differences(original: dict[str, Any], ours: dict[str, Any], recorded: bool, floats: bool) -> list[tuple[str, Any, Any]]:
    """What differs: the name of the part, and both.

    `recorded`: the original was recorded, perhaps on another machine, with another torch: the bytes of torch.save are not
    compared, and with `floats` numbers in JSON may be off by a little.
    """
    found = []
    for part in sorted(set(original) | set(ours)):
        a, b = original.get(part, MISSING), ours.get(part, MISSING)
        if a == b or (recorded and _alike(a, b, floats)):
            continue
        found.append((part, a, b))
    return found


def _alike(a: Any, b: Any, floats: bool) -> bool:
    if isinstance(a, dict) and isinstance(b, dict) and "torch.save" in a and "torch.save" in b:
        return True
    if not floats or not isinstance(a, str) or not isinstance(b, str):
        return False
    try:
        return _near(json.loads(a), json.loads(b))
    except ValueError:
        return False


def _near(a: Any, b: Any) -> bool:
    if isinstance(a, float) and isinstance(b, float):
        return math.isclose(a, b, **TOLERANCE)
    if isinstance(a, dict) and isinstance(b, dict):
        return list(a) == list(b) and all(_near(a[key], b[key]) for key in a)
    if isinstance(a, list) and isinstance(b, list):
        return len(a) == len(b) and all(_near(x, y) for x, y in zip(a, b))
    return type(a) is type(b) and a == b


def as_documented(ours: dict[str, Any], expected: dict[str, Any]) -> list[tuple[str, Any, Any]]:
    """In what our answer is not what a documented difference says: outcome, status, body, or a text that the body `contains`."""
    found = []
    for part, want in expected.items():
        if part == "contains":
            have = json.dumps(ours.get("body", ours.get("pieces")), ensure_ascii=False)
            if json.dumps(want, ensure_ascii=False)[1:-1] not in have:
                found.append(("body (documented)", "… %s …" % want, have))
        elif ours.get(part, MISSING) != want:
            found.append((part + " (documented)", want, ours.get(part, MISSING)))
    return found
