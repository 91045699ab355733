"""A metric whose values are reported as log lines that the server reads."""

from __future__ import annotations

import logging
import os
import time

from ts.metrics.dimension import Dimension
from ts.metrics.metric_abstract import MetricAbstract
from ts.metrics.metric_type_enum import MetricTypes

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import List, Optional, Sequence, Union

    Number = Union[int, float]

logger = logging.getLogger(__name__)


class CachingMetric(MetricAbstract):
    """Reports each value at once, as a line ``[METRICS]<name>.<Unit>:<value>|#<dimensions>|#type:<TYPE>|#hostname:...``."""

    def __init__(
        self,
        metric_name: str,
        unit: str,
        dimension_names: Optional[List[str]] = None,
        metric_type: MetricTypes = MetricTypes.COUNTER,
    ) -> None:
        super().__init__(metric_name, unit, dimension_names, metric_type)

    def _validate_and_get_dimensions(self, dimension_values: Optional[Sequence[object]]) -> List[Dimension]:
        if dimension_values is None or len(dimension_values) != len(self.dimension_names):
            raise ValueError(
                "Dimension values: %s should correspond to Dimension names: %s" % (dimension_values, self.dimension_names)
            )
        return [Dimension(name, value) for name, value in zip(self.dimension_names, dimension_values)]

    def _validate_metric_value(self, value: Number) -> None:
        if value < 0 and self.metric_type == MetricTypes.COUNTER:
            raise ValueError("Counter metric update value cannot be negative")

    def emit_metrics(self, request_id: str, value: Number, dimension_string: str) -> None:
        """Write the line of a value; `dimension_string` has the dimensions as name:value, joined by commas."""
        where_and_when = "%s,%d" % (os.uname().nodename, time.time())
        if request_id:
            where_and_when += ",%s" % request_id
        logger.info(
            "[METRICS]%s.%s:%s|#%s|#type:%s|#hostname:%s",
            self.metric_name,
            self.unit,
            value,
            dimension_string,
            self.metric_type.name,
            where_and_when,
        )

    def add_or_update(self, value: Number, dimension_values: List[object] = [], request_id: str = "") -> None:  # noqa: B006
        """Report `value` with one value for each of the metric's dimensions.

        A wrong number of dimension values, or a negative value for a counter, is logged as an error and not reported.
        """
        dimensions = ""
        try:
            dimensions = ",".join(str(dimension) for dimension in self._validate_and_get_dimensions(dimension_values))
            self._validate_metric_value(value)
        except ValueError as err:
            logger.error(
                "[METRICS]Failed to update metric with name:%s and dimensions: %s with value: %s: %s",
                self.metric_name,
                dimensions,
                value,
                err,
            )
            return
        self.emit_metrics(request_id, value, dimensions)

    def update(self, value: Number, request_id: str = "", dimensions: List[Dimension] = []) -> None:  # noqa: B006
        """Replace the metric's dimensions by `dimensions` (Dimension objects) and report `value`; of older handlers."""
        logger.warning("Overriding existing dimensions")
        self.dimension_names = [dimension.name for dimension in dimensions]
        self.add_or_update(value, [dimension.value for dimension in dimensions], request_id)
