"""From the items of a batch to what a handler is given: rows of data, and the headers behind the context."""

from __future__ import annotations

import json
import logging

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Dict, List, Mapping, Tuple

    from flambeau.worker.frames import Item

log = logging.getLogger(__name__)


def decode_wanted(environ: Mapping[str, str]) -> bool:
    """Whether bodies are to be decoded; TorchServe says so to its workers by TS_DECODE_INPUT_REQUEST."""
    return environ.get("TS_DECODE_INPUT_REQUEST", "true") == "true"


def make_rows(items: List[Item], decode: bool) -> Tuple[List[Dict[str, Any]], List[Dict[str, Any]]]:
    """Give a row (field name -> value) and a header dict for each item, as TorchServe's worker makes them.

    A value is what JSON says for content type application/json, str for text*, else, or when it cannot be decoded, a
    bytearray. The header dict has {"content-type": ...} under each field's name, then the request's own headers, by the
    client's spelling; of equal names the last one stays.
    """
    rows = []
    headers = []
    for item in items:
        row: Dict[str, Any] = {}
        head: Dict[str, Any] = {}
        for name, content_type, data in item.parts:
            row[name] = _value(name, content_type, data) if decode and content_type else bytearray(data)
            head[name] = {"content-type": content_type}
        head.update(item.headers)
        rows.append(row)
        headers.append(head)
    return rows, headers


def _value(name: str, content_type: str, data: memoryview) -> Any:
    try:
        if content_type == "application/json":
            return json.loads(str(data, "utf-8"))
        if content_type.startswith("text"):
            return str(data, "utf-8")
    except (ValueError, RecursionError) as err:
        log.warning("field %r says that it is %s but cannot be decoded (%s): the handler gets its bytes", name, content_type, err)
    return bytearray(data)
