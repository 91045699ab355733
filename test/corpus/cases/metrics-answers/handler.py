from ts.metrics.dimension import Dimension
from ts.metrics.metric_type_enum import MetricTypes
from ts.metrics.metrics_store import MetricsStore


def handle(data, context):
    if data is None:
        context.metrics.add_counter("AtLoad", 1)
        return None
    metrics, refused = context.metrics, []
    dimensions = [Dimension("Kind", row["body"]) for row in data]
    metrics.add_counter("Calls", 1, idx=0, dimensions=dimensions)
    metrics.add_time("Took", 0.25, None, "ms")
    for wrong in (
        lambda: metrics.add_time("Took", 1, None, "weeks"),
        lambda: metrics.add_size("Size", 1, None, "miles"),
        lambda: metrics.get_metric("NeverMade", MetricTypes.GAUGE),
        lambda: metrics.add_counter("Calls", -1, idx=0),
    ):
        try:
            wrong()
            refused.append(None)
        except Exception as err:
            refused.append(type(err).__name__)
    store = MetricsStore(context.request_ids, context.model_name)
    store.add_counter("Old", 2)
    store.add_error("OldError", "text")
    return [{"refused": refused, "dimensions": [str(d) for d in dimensions], "store": [m.name for m in store.store]}]
