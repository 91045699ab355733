"""Mistakes that the types of `ts` must show: mypy finds an ignore without an error here when they do not. It is never run."""

from __future__ import annotations

from typing import Any, List

from ts.context import Context
from ts.handler_utils.utils import send_intermediate_predict_response
from ts.metrics.dimension import Dimension
from ts.torch_handler.base_handler import BaseHandler
from ts.utils.util import PredictionException, load_label_mapping


class Mistaken(BaseHandler):
    """Makes one mistake in each line."""

    def handle(self, data: List[Any], context: Context) -> str:
        """Uses what is there in a wrong way."""
        context.get_request_id("first")  # type: ignore[arg-type]
        context.get_request_header("content-type")  # type: ignore[arg-type, call-arg]
        context.set_response_header(0, "X-Count", 1)  # type: ignore[arg-type]
        context.set_response_status("404")  # type: ignore[arg-type]
        context.get_request_id(0).upper()  # type: ignore[union-attr]
        context.manifest["model"]  # type: ignore[index]
        context.no_such_thing()  # type: ignore[attr-defined]
        context.metrics.add_counter("Requests", "1")  # type: ignore[arg-type]
        context.metrics.add_time("Waited")  # type: ignore[call-arg]
        context.metrics.add_size("Body", 1, dimensions=["Kind"])  # type: ignore[list-item]
        Dimension("Kind")  # type: ignore[call-arg]
        send_intermediate_predict_response(["piece"], ["id"], "ok", 200, context)  # type: ignore[arg-type]
        load_label_mapping(self)  # type: ignore[arg-type]
        self.initialized = "yes"  # type: ignore[assignment]
        raise PredictionException("no", "404")  # type: ignore[arg-type]
