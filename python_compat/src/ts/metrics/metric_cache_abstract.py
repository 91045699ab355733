"""The metrics object of a context: what handlers call."""

from __future__ import annotations

import abc

import ts.metrics.metric_cache_errors as merrors
from ts.metrics.dimension import Dimension
from ts.metrics.metric_abstract import MetricAbstract
from ts.metrics.metric_type_enum import MetricTypes

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Dict, List, Optional, Type, Union

    Number = Union[int, float]


class MetricCacheAbstract(abc.ABC):
    """Keeps a model's metrics by type and name, and reports their values.

    Every add_* method adds the dimensions ModelName and Level:Model to the list that it is given (to the list itself, as on
    TorchServe), unless they are there. A metric keeps the dimension names of its first use. `idx` is a row of the batch, whose
    request id is then reported; without it those of the whole batch are.
    """

    def __init__(self, config_file_path: str) -> None:
        """Raises MetricsCacheTypeError when `config_file_path` cannot be a path at all."""
        if not isinstance(config_file_path, (str, bytes, int)) and not hasattr(config_file_path, "__fspath__"):
            raise merrors.MetricsCacheTypeError(
                "Error loading %s file: a path is needed, not a %s" % (config_file_path, type(config_file_path).__name__)
            )
        self.cache: Dict[MetricTypes, Dict[str, Any]] = {}
        self.store: List[Any] = []
        self.request_ids: Any = None  # a str, or row -> id
        self.model_name: Optional[str] = None
        self.config_file_path = config_file_path

    def set_request_ids(self, request_ids: Any) -> None:
        """Set for which requests values are reported: an id, or a dict from row to id."""
        self.request_ids = request_ids

    def add_metric(
        self,
        name: str,
        value: Number,
        unit: str,
        idx: Optional[int] = None,
        dimensions: List[Dimension] = [],  # noqa: B006
        metric_type: MetricTypes = MetricTypes.COUNTER,
    ) -> None:
        """Report a value of any unit and type."""
        self._report(name, value, unit, self._get_req(idx), dimensions, metric_type)

    def add_counter(
        self,
        name: str,
        value: Number,
        idx: Optional[int] = None,
        dimensions: List[Dimension] = [],  # noqa: B006
    ) -> None:
        """Add to a counter; the value must not be negative."""
        self._report(name, value, "count", self._get_req(idx), dimensions, MetricTypes.COUNTER)

    def add_time(
        self,
        name: str,
        value: Number,
        idx: Optional[int] = None,
        unit: str = "ms",
        dimensions: List[Dimension] = [],  # noqa: B006
        metric_type: MetricTypes = MetricTypes.GAUGE,
    ) -> None:
        """Report a time in "ms" or "s". Raises MetricsCacheValueError for another unit."""
        if unit not in ("ms", "s"):
            raise merrors.MetricsCacheValueError("the unit for a timed metric should be one of ['ms', 's']")
        self._report(name, value, unit, self._get_req(idx), dimensions, metric_type)

    def add_size(
        self,
        name: str,
        value: Number,
        idx: Optional[int] = None,
        unit: str = "MB",
        dimensions: List[Dimension] = [],  # noqa: B006
        metric_type: MetricTypes = MetricTypes.GAUGE,
    ) -> None:
        """Report a size in "MB", "kB", "GB" or "B". Raises ValueError for another unit."""
        if unit not in ("MB", "kB", "GB", "B"):
            raise ValueError("The unit for size based metric is one of ['MB','kB', 'GB', 'B']")
        self._report(name, value, unit, self._get_req(idx), dimensions, metric_type)

    def add_percent(
        self,
        name: str,
        value: Number,
        idx: Optional[int] = None,
        dimensions: List[Dimension] = [],  # noqa: B006
        metric_type: MetricTypes = MetricTypes.GAUGE,
    ) -> None:
        """Report a percentage."""
        self._report(name, value, "percent", self._get_req(idx), dimensions, metric_type)

    def add_error(self, name: str, value: Number, dimensions: List[Dimension] = []) -> None:  # noqa: B006
        """Count an error: dimension Level:Error, no request id."""
        self._report(name, value, "", None, dimensions, MetricTypes.COUNTER)

    @abc.abstractmethod
    def initialize_cache(self) -> None:
        """Make the metrics that the configuration declares."""

    @abc.abstractmethod
    def get_metric(self, metric_name: str, metric_type: MetricTypes = MetricTypes.COUNTER) -> MetricAbstract:
        """Give a metric. Raises MetricsCacheKeyError when there is none of that type and name."""

    @abc.abstractmethod
    def add_metric_to_cache(
        self,
        metric_name: str,
        unit: str,
        dimension_names: List[str] = [],  # noqa: B006
        metric_type: MetricTypes = MetricTypes.COUNTER,
    ) -> MetricAbstract:
        """Make a metric, in place of one of the same type and name, and give it."""

    def _report(
        self,
        name: str,
        value: Number,
        unit: str,
        request_id: Optional[str],
        dimensions: List[Dimension],
        metric_type: MetricTypes,
    ) -> None:
        dimensions = self._add_default_dims(request_id, dimensions)
        metric = self._get_or_add_metric(name, unit, dimensions, metric_type)
        values = [dimension.value for dimension in dimensions]
        if request_id is None:
            metric.add_or_update(value, values)
        else:
            metric.add_or_update(value, values, request_id)

    def _add_default_dims(self, idx: Optional[str], dimensions: List[Dimension]) -> List[Dimension]:
        dimensions = dimensions or []  # an empty list may be the default of a method, which all its calls share
        present = {dimension.name for dimension in dimensions}
        wanted = [("Level", "Error")] if idx is None else [("ModelName", self.model_name), ("Level", "Model")]
        dimensions.extend(Dimension(name, value) for name, value in wanted if name not in present)
        return dimensions

    def _get_req(self, idx: Optional[int]) -> Any:
        ids = self.request_ids
        if idx is not None and ids is not None and idx in ids:
            return ids[idx]
        return ",".join(ids.values()) if isinstance(ids, dict) else ids

    def _get_or_add_metric(
        self, metric_name: str, unit: str, dimensions: List[Dimension], metric_type: MetricTypes
    ) -> MetricAbstract:
        try:
            return self.get_metric(metric_name, metric_type)
        except merrors.MetricsCacheKeyError:
            names = [dimension.name for dimension in dimensions]
            return self.add_metric_to_cache(metric_name, unit, names, metric_type)

    @staticmethod
    def _check_type(variable: object, expected_type: Type[Any], helper_text: str) -> None:
        if not isinstance(variable, expected_type):
            raise merrors.MetricsCacheTypeError(helper_text)
