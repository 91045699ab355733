"""A model in a worker, as TorchServe's own worker keeps it. Flambeau's worker does without; it is for code that imports it."""

from __future__ import annotations

import logging
import os
import time

import ts
from ts.context import Context, RequestProcessor
from ts.protocol.otf_message_handler import create_predict_response
from ts.utils.util import PredictionException, get_yaml_config

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Callable, Dict, Iterable, List, Optional, Tuple

PREDICTION_METRIC = "PredictionTime"

logger = logging.getLogger(__name__)


class Service:
    """An entry point and its context."""

    def __init__(
        self,
        model_name: str,
        model_dir: str,
        manifest: Optional[Dict[str, Any]],
        entry_point: Callable[[Any, Context], Any],
        gpu: Optional[int],
        batch_size: int,
        limit_max_image_pixels: bool = True,
        metrics_cache: Any = None,
    ) -> None:
        config_file = (manifest or {}).get("model", {}).get("configFile")
        config = {} if config_file is None else get_yaml_config(os.path.join(model_dir, config_file))
        self._entry_point = entry_point
        self._context = Context(
            model_name,
            model_dir,
            manifest,
            batch_size,
            gpu,
            ts.__version__,
            limit_max_image_pixels,
            metrics_cache,
            config,
        )

    @property
    def context(self) -> Context:
        """The context that the entry point is called with."""
        return self._context

    def set_cl_socket(self, cl_socket: Any) -> None:
        """Set where intermediate answers go."""
        self.cl_socket = cl_socket

    @staticmethod
    def retrieve_data_for_inference(
        batch: Optional[List[Dict[str, Any]]],
    ) -> Tuple[List[RequestProcessor], List[Dict[str, Any]], Dict[int, str]]:
        """From the requests of retrieve_msg: header objects, rows, and a dict from row to request id.

        Raises ValueError when `batch` is None.
        """
        if batch is None:
            raise ValueError("Received invalid inputs")
        processors, rows, ids = [], [], {}
        for index, request in enumerate(batch):
            ids[index] = request["requestId"].decode("utf-8")
            parameters = request["parameters"]
            headers = {parameter["name"]: {"content-type": parameter["contentType"]} for parameter in parameters}
            for header in request.get("headers") or ():
                headers[header["name"].decode("utf-8")] = header["value"].decode("utf-8")
            processors.append(RequestProcessor(headers))
            rows.append({parameter["name"]: parameter["value"] for parameter in parameters})
        return processors, rows, ids

    def predict(self, batch: Optional[List[Dict[str, Any]]]) -> Optional[bytearray]:
        """Run the entry point on a batch of retrieve_msg and give the answer as a message."""
        processors, rows, ids = self.retrieve_data_for_inference(batch)
        context = self.context
        context.request_ids = ids
        context.request_processor = processors
        context.metrics.request_ids = ids
        context.cl_socket = getattr(self, "cl_socket", None)  # type: ignore[attr-defined]
        begun = time.time()
        try:
            answers = self._entry_point(rows, context)
        except Exception as err:
            logger.warning("the handler failed", exc_info=True)
            return create_predict_response(None, ids, *_message_and_code(err))
        if not isinstance(answers, list):
            logger.warning("model %s returned a %s, not a list", context.model_name, type(answers).__name__)
            return create_predict_response(None, ids, "Invalid model predict output", 503)
        if len(answers) != len(rows):
            logger.warning("model %s returned %d answers to %d requests", context.model_name, len(answers), len(rows))
            return create_predict_response(None, ids, "number of batch response mismatched", 503)
        context.metrics.add_time(PREDICTION_METRIC, round((time.time() - begun) * 1000, 2))
        return create_predict_response(answers, ids, "Prediction success", 200, context=context)


def _message_and_code(err: Exception) -> Tuple[str, int]:
    if isinstance(err, PredictionException):
        return err.message, err.error_code
    if isinstance(err, MemoryError) or "CUDA" in str(err):
        return "Out of resources", 507
    return "Prediction failed", 503


def emit_metrics(metrics: Optional[Iterable[Any]]) -> None:
    """Log each metric of an older MetricsStore as a line that the server reads."""
    for metric in metrics or ():
        logger.info("[METRICS]%s", metric)
