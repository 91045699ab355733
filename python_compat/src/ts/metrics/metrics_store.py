"""The metrics object of older handlers and of tests: collects metrics, and reports only what is added a second time."""

from __future__ import annotations

from ts.metrics.dimension import Dimension
from ts.metrics.metric import Metric

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Dict, List, Optional, Union

    Number = Union[int, float]


class MetricsStore:
    """`store` has the metrics in order, `cache` has them by a key of name, unit, request id and dimensions."""

    def __init__(self, request_ids: Any, model_name: str) -> None:
        """`request_ids` maps rows to ids, or is one id."""
        self.store: List[Metric] = []
        self.request_ids = request_ids
        self.model_name = model_name
        self.cache: Dict[str, Metric] = {}

    def _add_or_update(
        self,
        name: str,
        value: Number,
        req_id: Any,
        unit: str,
        metrics_method: Any = None,
        dimensions: Optional[List[Dimension]] = None,
    ) -> None:
        if dimensions is None:
            dimensions = []
        elif not isinstance(dimensions, list):
            raise ValueError("Please provide a list of dimensions")
        if req_id is not None:
            dimensions.append(Dimension("ModelName", self.model_name))
        dimensions.append(Dimension("Level", "Error" if req_id is None else "Model"))
        key = "-".join([name, unit, str(req_id)] + [str(dimension) for dimension in dimensions])
        if key in self.cache:
            self.cache[key].update(value)
            return
        metric = Metric(name, value, unit, dimensions, req_id, metrics_method)
        self.store.append(metric)
        self.cache[key] = metric

    def _get_req(self, idx: Optional[int]) -> Any:
        ids = self.request_ids
        if idx is not None and ids is not None and idx in ids:
            return ids[idx]
        return ",".join(ids.values()) if isinstance(ids, dict) else ids

    def add_counter(
        self, name: str, value: Number, idx: Optional[int] = None, dimensions: Optional[List[Dimension]] = None
    ) -> None:
        """Add a count."""
        self._add_or_update(name, value, self._get_req(idx), "count", "counter", dimensions)

    # The dimensions of the four below go where a method's name is expected: so it is on TorchServe, where they have no effect.

    def add_time(
        self,
        name: str,
        value: Number,
        idx: Optional[int] = None,
        unit: str = "ms",
        dimensions: Optional[List[Dimension]] = None,
    ) -> None:
        """Add a time in "ms" or "s". Raises ValueError for another unit."""
        if unit not in ("ms", "s"):
            raise ValueError("the unit for a timed metric should be one of ['ms', 's']")
        self._add_or_update(name, value, self._get_req(idx), unit, dimensions)

    def add_size(
        self,
        name: str,
        value: Number,
        idx: Optional[int] = None,
        unit: str = "MB",
        dimensions: Optional[List[Dimension]] = None,
    ) -> None:
        """Add a size in "MB", "kB", "GB" or "B". Raises ValueError for another unit."""
        if unit not in ("MB", "kB", "GB", "B"):
            raise ValueError("The unit for size based metric is one of ['MB','kB', 'GB', 'B']")
        self._add_or_update(name, value, self._get_req(idx), unit, dimensions)

    def add_percent(
        self, name: str, value: Number, idx: Optional[int] = None, dimensions: Optional[List[Dimension]] = None
    ) -> None:
        """Add a percentage."""
        self._add_or_update(name, value, self._get_req(idx), "percent", dimensions)

    def add_error(self, name: str, value: Any, dimensions: Optional[List[Dimension]] = None) -> None:
        """Add an error; `value` may be a text."""
        self._add_or_update(name, value, None, "", dimensions)

    def add_metric(
        self,
        name: str,
        value: Number,
        unit: str,
        idx: Optional[int] = None,
        dimensions: Optional[List[Dimension]] = None,
    ) -> None:
        """Add a value of any unit."""
        self._add_or_update(name, value, self._get_req(idx), unit, dimensions)
