"""What every metric of the metrics object has."""

from __future__ import annotations

import abc

from ts.metrics.metric_type_enum import MetricTypes
from ts.metrics.unit import Units

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import List, Optional, Union

    Number = Union[int, float]

MetricUnit = Units()


class MetricAbstract(abc.ABC):
    """A metric: name, unit (a word of Units where it has one), names of dimensions, type."""

    def __init__(
        self,
        metric_name: str,
        unit: str,
        dimension_names: Optional[List[str]] = None,
        metric_type: MetricTypes = MetricTypes.COUNTER,
    ) -> None:
        self.metric_name = metric_name
        self.unit = MetricUnit.units.get(unit, unit)
        self.dimension_names = dimension_names or []
        self.metric_type = metric_type

    @abc.abstractmethod
    def add_or_update(self, value: Number, dimension_values: List[object], request_id: str = "") -> None:
        """Report a value."""
