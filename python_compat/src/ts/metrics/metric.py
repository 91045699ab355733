"""A metric with a value of its own, of older handlers."""

from __future__ import annotations

import os
import time
from collections import OrderedDict

from ts.metrics.caching_metric import CachingMetric
from ts.metrics.metric_type_enum import MetricTypes
from ts.metrics.unit import Units

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, List, Optional, Union

    from ts.metrics.dimension import Dimension

    Number = Union[int, float]

MetricUnit = Units()


class Metric:
    """A name, a value, a unit and dimensions. str() gives the line of a metric without its type."""

    def __init__(
        self,
        name: str,
        value: Number,
        unit: Optional[str],
        dimensions: List[Dimension],
        request_id: Optional[str] = None,
        metric_method: Optional[str] = None,
    ) -> None:
        """`metric_method` is kept and not used, as on TorchServe."""
        self.metric_type = MetricTypes.COUNTER
        self.dimensions = dimensions
        self.dimension_names = [dimension.name for dimension in dimensions]
        self.dimension_values = [dimension.value for dimension in dimensions]
        self._reporter = CachingMetric(name, unit, self.dimension_names, self.metric_type)  # type: ignore[arg-type]
        self.name = self._reporter.metric_name
        self.unit = self._reporter.unit
        self.metric_method = metric_method
        self.value = value
        self.request_id = request_id

    def update(self, value: Number) -> None:
        """Report `value`, as a counter; the metric's own value stays."""
        self._reporter.add_or_update(value, self.dimension_values, request_id=self.request_id)  # type: ignore[arg-type]

    def reset(self) -> None:
        """Report 0."""
        self.update(0)

    def __str__(self) -> str:
        dimensions = ",".join(str(dimension) for dimension in self.dimensions)
        line = "%s.%s:%s|#%s|#hostname:%s,%d" % (
            self.name,
            self.unit,
            self.value,
            dimensions,
            os.uname().nodename,
            time.time(),
        )
        return "%s,%s" % (line, self.request_id) if self.request_id else line

    def to_dict(self) -> OrderedDict[str, Any]:
        """All of it, for JSON with MetricEncoder."""
        return OrderedDict(
            MetricName=self.name,
            Value=self.value,
            Unit=self.unit,
            Dimensions=self.dimensions,
            Timestamp=int(time.time()),
            HostName=os.uname().nodename,
            RequestId=self.request_id,
        )
