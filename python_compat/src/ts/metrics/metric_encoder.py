"""JSON of metrics."""

from __future__ import annotations

import json

from ts.metrics.dimension import Dimension
from ts.metrics.metric import Metric


class MetricEncoder(json.JSONEncoder):
    """Encodes Metric and Dimension objects as objects."""

    def default(self, obj: object) -> object:
        """What json calls for what it does not know."""
        if isinstance(obj, (Metric, Dimension)):
            return obj.to_dict()
        return super().default(obj)
