"""Streamed answers, and classes by name."""

from __future__ import annotations

import importlib
import os

from ts.context import Context
from ts.protocol.otf_message_handler import create_predict_response

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Dict, Optional

__all__ = ["create_predict_response", "import_class", "send_intermediate_predict_response"]


def send_intermediate_predict_response(ret: Any, req_id_map: Dict[int, str], message: str, code: int, context: Context) -> None:
    """Send one piece of a streamed answer to each request: ret[i] to the request req_id_map[i].

    Call it as often as there are pieces, with context.request_ids; what the handler returns at its end is the last one.
    Status, content type and headers have to be set before the first. With a `code` other than 200 the requests get an error with
    that status and `message`. Does nothing in a process whose LOCAL_RANK is not 0.
    """
    if os.environ.get("LOCAL_RANK", "0") != "0":
        return
    channel = context.cl_socket  # type: ignore[attr-defined]
    send_piece = getattr(type(channel), "send_piece", None)
    if send_piece is not None:
        send_piece(channel, ret, req_id_map, message, code, context)
        return
    # A socket of somebody who runs the handler without a server, in a test for instance.
    channel.sendall(create_predict_response(ret, req_id_map, message, code, context, True))


def import_class(class_name: str, module_prefix: Optional[str] = None) -> Any:
    """Import a class by its dotted name, which `module_prefix` (a package or a module) may begin.

    Raises ImportError for an empty name, for a name without a module, and when there is no such module or class.
    """
    if not class_name:
        raise ImportError("class name is not defined")
    module_name, _, name = class_name.rpartition(".")
    full_name = ".".join(part for part in (module_prefix, module_name) if part)
    if not full_name:
        raise ImportError("module name is not defined.")
    found = getattr(importlib.import_module(full_name), name, None)
    if found is None:
        raise ImportError("class:%s not found in module:%s." % (name, module_name))
    return found
