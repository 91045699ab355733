"""What a handler is told about its model and its requests, and what it tells about its responses."""

from __future__ import annotations

import os
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Dict, List, Optional, Tuple

    from ts.metrics.metric_cache_abstract import MetricCacheAbstract


class Context:  # as on TorchServe it compares by its attributes and has no hash
    """One object for a model's whole life in a worker; request_ids, request_processor and cl_socket change with each batch.

    A handler may keep attributes of its own on it.
    """

    def __init__(
        self,
        model_name: str,
        model_dir: str,
        manifest: Optional[Dict[str, Any]],
        batch_size: int,
        gpu: Optional[int],
        mms_version: str,
        limit_max_image_pixels: bool = True,
        metrics: Any = None,
        model_yaml_config: Optional[Dict[str, Any]] = None,
    ) -> None:
        """`gpu` is None on CPU, `manifest` for a model without one; `model_yaml_config` is the model's configuration."""
        self._system_properties = {
            "model_dir": model_dir,
            "gpu_id": gpu,
            "batch_size": batch_size,
            "server_name": "MMS",
            "server_version": mms_version,
            "limit_max_image_pixels": limit_max_image_pixels,
        }  # type: Dict[str, Any]
        self._limit_max_image_pixels = True
        self._metrics = metrics
        self._request_processor: Optional[List[RequestProcessor]] = None
        self.model_name = model_name
        self.manifest = manifest
        self.model_yaml_config = model_yaml_config
        self.request_ids: Optional[Dict[int, str]] = None
        self.stopping_criteria: Any = None  # set by handlers: one callable per row
        self.header_key_sequence_id = _header_key("ts_request_sequence_id")
        self.header_key_sequence_start = _header_key("ts_request_sequence_start")
        self.header_key_sequence_end = _header_key("ts_request_sequence_end")

    @property
    def system_properties(self) -> Dict[str, Any]:
        """model_dir, gpu_id (None on CPU), batch_size (the largest), server_name, server_version, limit_max_image_pixels."""
        return self._system_properties

    @property
    def request_processor(self) -> List[RequestProcessor]:
        """One RequestProcessor for each row of the batch; None while loading."""
        return self._request_processor  # type: ignore[return-value]

    @request_processor.setter
    def request_processor(self, request_processor: Any) -> None:
        self._request_processor = request_processor

    @property
    def metrics(self) -> MetricCacheAbstract:
        """Where a handler's own metrics go."""
        return self._metrics  # type: ignore[no-any-return]

    @metrics.setter
    def metrics(self, metrics: Any) -> None:
        self._metrics = metrics

    def get_request_id(self, idx: int = 0) -> Optional[str]:
        """The request id of row `idx`; None while loading, or when there is no such row."""
        return None if self.request_ids is None else self.request_ids.get(idx)

    def get_request_header(self, idx: int, key: str) -> Optional[Any]:
        """A request header of row `idx`, None if absent. Names are case-sensitive, as the client spelled them."""
        return self._row(idx).get_request_property(key)

    def get_all_request_header(self, idx: int) -> Dict[str, Any]:
        """The header dict of row `idx` itself, fields' content types included."""
        return self._row(idx).get_request_properties()  # type: ignore[no-any-return]

    def get_time_left(self, idx: int = 0) -> Optional[float]:
        """Seconds until nobody waits for the response to row `idx` any more, 0.0 once that is so; None when there is no limit.

        TorchServe has no such method. The earliest of the client's deadline and the model's response timeout counts. What takes
        longer is lost work.
        """
        return self._row(idx).get_time_left()  # type: ignore[no-any-return]

    def set_response_content_type(self, idx: int, value: str) -> None:
        """Set the content type of the response to row `idx`. Without it, and without a header of that name, there is none."""
        self.set_response_header(idx, "content-type", value)

    def get_response_content_type(self, idx: int) -> Optional[str]:
        """What set_response_content_type set, else None."""
        return self.get_response_headers(idx).get("content-type")

    def get_response_status(self, idx: int) -> Tuple[int, Optional[str]]:
        """Status code and reason phrase of the response to row `idx`."""
        row = self._row(idx)
        return row.get_response_status_code(), row.get_response_status_phrase()

    def set_response_status(self, code: int = 200, phrase: str = "", idx: int = 0) -> None:
        """Set the HTTP status of the response to row `idx`; its body stays what the handler returns. While loading: nothing."""
        if self._request_processor is None:
            return
        row = self._row(idx)
        if row is not None:
            row.report_status(code, reason_phrase=phrase)

    def set_all_response_status(self, code: int = 200, phrase: str = "") -> None:
        """Set the HTTP status of the responses to all rows."""
        for row in self._request_processor:  # type: ignore[union-attr]  # as on TorchServe, a TypeError while loading
            row.report_status(code, reason_phrase=phrase)

    def get_response_headers(self, idx: int) -> Dict[str, str]:
        """The response headers of row `idx`; changes to the dict are sent too."""
        return self._row(idx).get_response_headers()  # type: ignore[no-any-return]

    def set_response_header(self, idx: int, key: str, value: str) -> None:
        """Set a response header of row `idx`."""
        self._row(idx).add_response_property(key, value)

    def get_sequence_id(self, idx: int) -> Optional[str]:
        """The id of the sequence that row `idx` belongs to."""
        return self._row(idx).get_request_property(self.header_key_sequence_id)  # type: ignore[no-any-return]

    def _row(self, idx: int) -> Any:
        return self._request_processor[idx]  # type: ignore[index]  # as on TorchServe, a TypeError while loading

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Context) and vars(self) == vars(other)


def _header_key(default: str) -> str:
    """A header's name, which a variable of the same name in capitals may change."""
    return os.environ.get(default.upper(), default)


class RequestProcessor:
    """Request headers and response status and headers of one row."""

    _deadline = 0  # when nobody waits for the response any more: Unix time in nanoseconds, 0 for never

    def __init__(self, request_header: Dict[str, Any]) -> None:
        self._request_header = request_header
        self._response_header: Dict[str, str] = {}
        self._status_code = 200
        self._reason_phrase: Optional[str] = None

    @classmethod
    def until(cls, request_header: Dict[str, Any], deadline: int) -> RequestProcessor:
        """One for a row whose client waits until `deadline`: Unix time in nanoseconds, 0 for ever. Ours alone."""
        processor = cls(request_header)
        processor._deadline = deadline
        return processor

    def get_request_property(self, key: str) -> Optional[Any]:
        """A request header, None if absent."""
        return self._request_header.get(key)

    def get_time_left(self) -> Optional[float]:
        """Seconds until nobody waits for the response any more, 0.0 once that is so; None when somebody waits without a limit."""
        if not self._deadline:
            return None
        return max(self._deadline / 1e9 - time.time(), 0.0)

    def get_request_properties(self) -> Dict[str, Any]:
        """All request headers; the dict itself."""
        return self._request_header

    def report_status(self, code: int, reason_phrase: Optional[str] = None) -> None:
        """Set the response's status and reason phrase."""
        self._status_code = code
        self._reason_phrase = reason_phrase

    def get_response_status_code(self) -> int:
        """The response's status, 200 until somebody sets another."""
        return self._status_code

    def get_response_status_phrase(self) -> Optional[str]:
        """The response's reason phrase, None until somebody sets one."""
        return self._reason_phrase

    def add_response_property(self, key: str, value: str) -> None:
        """Set a response header."""
        self._response_header[key] = value

    def get_response_headers(self) -> Dict[str, str]:
        """All response headers; the dict itself."""
        return self._response_header

    def get_response_header(self, key: str) -> Optional[str]:
        """A response header, None if absent."""
        return self._response_header.get(key)
