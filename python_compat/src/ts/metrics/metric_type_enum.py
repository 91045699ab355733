"""The types of metrics."""

import enum


class MetricTypes(enum.Enum):
    """A counter grows, a gauge is set, a histogram counts values by size."""

    COUNTER = "counter"
    GAUGE = "gauge"
    HISTOGRAM = "histogram"
