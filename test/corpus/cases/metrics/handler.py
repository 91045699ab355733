from ts.metrics.dimension import Dimension
from ts.metrics.metric_type_enum import MetricTypes


class Meter:
    def initialize(self, context):
        self.own = context.metrics.add_metric_to_cache("CorpusOwn", "count", ["Kind", "Level"], MetricTypes.COUNTER)

    def handle(self, data, context):
        metrics = context.metrics
        for index, row in enumerate(data):
            number = int(row["body"])
            metrics.add_counter("CorpusCounter", number, idx=index)
            metrics.add_time("CorpusTime", number * 1.5, idx=index)
            metrics.add_time("CorpusSeconds", number, idx=index, unit="s")
            metrics.add_size("CorpusSize", number, idx=index, unit="kB")
            metrics.add_percent("CorpusPercent", number / 2, idx=index)
            metrics.add_error("CorpusError", 1)
            metrics.add_metric("CorpusGauge", number, "unit", idx=index, metric_type=MetricTypes.GAUGE)
            metrics.add_counter("CorpusKinds", 1, idx=index, dimensions=[Dimension("Kind", "odd" if number % 2 else "even")])
            self.own.add_or_update(number, ["own", "Model"])
            metrics.add_counter("CorpusCounter", -1, idx=index)  # is refused, in the log
        cached = metrics.get_metric("CorpusTime", MetricTypes.GAUGE)
        metrics.add_counter("CorpusLast", 1)
        return [[type(cached).__name__, metrics.model_name, sorted(key.name for key in MetricTypes)] for _ in data]
