"""A handler as an author writes it; test_typing.py lets mypy check it strictly, and runs it."""

from __future__ import annotations

import json
import logging
from typing import Any, Dict, List, Optional

from ts.context import Context
from ts.handler_utils.utils import send_intermediate_predict_response
from ts.metrics.dimension import Dimension
from ts.metrics.metric_type_enum import MetricTypes
from ts.torch_handler.base_handler import BaseHandler
from ts.utils.util import PredictionException, list_classes_from_module, load_label_mapping, map_class_to_label

logger = logging.getLogger(__name__)


class SampleHandler(BaseHandler):
    """Counts the characters of texts."""

    def __init__(self) -> None:
        super().__init__()
        self.labels: Optional[Dict[str, str]] = None

    def initialize(self, context: Context) -> None:
        """Read the labels."""
        model_dir: str = context.system_properties["model_dir"]
        self.labels = load_label_mapping(model_dir + "/index_to_name.json")
        self.manifest = context.manifest
        self.initialized = True
        logger.info("%s on %s", context.model_name, context.system_properties.get("gpu_id"))

    def preprocess(self, data: List[Dict[str, Any]]) -> List[str]:
        """Texts of the rows."""
        texts = []
        for row in data:
            value = row.get("data") or row.get("body")
            if value is None:
                raise PredictionException("a row has neither data nor body", 400)
            texts.append(value if isinstance(value, str) else bytes(value).decode("utf-8"))
        return texts

    def inference(self, data: List[str], *args: Any, **kwargs: Any) -> List[int]:
        """Their lengths."""
        return [len(text) for text in data]

    def postprocess(self, data: List[int]) -> List[Dict[str, Any]]:
        """Labels and lengths."""
        return map_class_to_label([[float(length)] for length in data], self.labels)

    def handle(self, data: List[Dict[str, Any]], context: Context) -> List[Any]:
        """Answer a batch, after one intermediate piece."""
        self.context = context
        metrics = context.metrics
        metrics.add_counter("Requests", len(data))
        metrics.add_time("Waited", 1.5, idx=0, unit="ms")
        metrics.add_size("Body", 2, dimensions=[Dimension("Kind", "text")])
        metrics.add_metric("Any", 1, "count", metric_type=MetricTypes.GAUGE)
        request_id: Optional[str] = context.get_request_id(0)
        kind: Optional[str] = context.get_request_header(0, "content-type")
        answers = self.postprocess(self.inference(self.preprocess(data)))
        if context.request_ids:
            send_intermediate_predict_response(["first"] * len(data), context.request_ids, "ok", 200, context)
        for index in range(len(data)):
            context.set_response_content_type(index, "application/json")
            context.set_response_header(index, "X-Request", "%s %s" % (request_id, kind))
            context.set_response_status(code=201, phrase="Counted", idx=index)
        return [json.dumps(answer) for answer in answers]


def classes() -> List[Any]:
    """The classes of this module."""
    import sys

    return list_classes_from_module(sys.modules[__name__])
