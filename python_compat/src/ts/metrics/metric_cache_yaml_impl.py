"""The metrics object of a context, with the metrics that a YAML file declares."""

from __future__ import annotations

import logging
import os

import ts.metrics.metric_cache_errors as merrors
from ts.metrics.caching_metric import CachingMetric
from ts.metrics.metric_cache_abstract import MetricCacheAbstract
from ts.metrics.metric_type_enum import MetricTypes

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Dict, List

logger = logging.getLogger(__name__)

_PACKAGED = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "configs", "metrics.yaml")


class MetricsCacheYamlImpl(MetricCacheAbstract):
    """Metrics by type and name; initialize_cache makes those of section `model_metrics` of the file."""

    def __init__(self, config_file_path: str) -> None:
        """Raises MetricsCacheTypeError without a path, MetricsCacheIOError or MetricsCachePyYamlError when it cannot be read."""
        super().__init__(config_file_path=config_file_path)
        self._parse_yaml_file(self.config_file_path)

    def _parse_yaml_file(self, config_file_path: str) -> None:
        if not config_file_path:
            raise merrors.MetricsCacheTypeError("Config file not initialized")
        if config_file_path == _PACKAGED:
            self._parsed_file = _packaged()
            return
        from ts.utils.util import get_yaml_config

        try:
            self._parsed_file = get_yaml_config(config_file_path)
        except OSError as err:
            raise merrors.MetricsCacheIOError("Error reading file %s: %s" % (config_file_path, err)) from err
        except merrors.MetricsCachePyYamlError.__bases__[0] as err:
            raise merrors.MetricsCachePyYamlError("Error parsing file %s: %s" % (config_file_path, err)) from err
        except Exception as err:
            raise merrors.GeneralMetricsCacheError("General error found in file %s: %s" % (config_file_path, err)) from err

    def _parse_metrics_section(self, key: str = "model_metrics") -> Any:
        try:
            return self._parsed_file[key]
        except (KeyError, TypeError) as err:
            raise merrors.MetricsCacheKeyError("'%s' key not found in yaml file: %s" % (key, err)) from err

    def initialize_cache(self) -> None:
        """Make the declared metrics. Raises MetricsCacheValueError or MetricsCacheKeyError for a wrong section."""
        section = self._parse_metrics_section("model_metrics")
        if not section:
            raise merrors.MetricsCacheValueError("Missing `model_metrics` specification")
        for type_name, declared in section.items():
            try:
                metric_type = MetricTypes(type_name)
            except ValueError as err:
                raise merrors.MetricsCacheKeyError("Invalid metric type: %s" % err) from err
            for one in declared:
                try:
                    name, unit, dimensions = one["name"], one["unit"], one["dimensions"]
                except KeyError as err:
                    raise merrors.MetricsCacheKeyError("Key not found in cache spec: %s" % err) from err
                self.add_metric_to_cache(name, unit, dimensions, metric_type)

    def add_metric_to_cache(
        self,
        metric_name: str,
        unit: str,
        dimension_names: List[str] = [],  # noqa: B006
        metric_type: MetricTypes = MetricTypes.COUNTER,
    ) -> CachingMetric:
        """Make a metric and give it; a metric of the same type and name is replaced, with a warning.

        Raises MetricsCacheTypeError for an argument of a wrong type.
        """
        self._check_type(metric_name, str, "`metric_name` must be a str")
        self._check_type(unit, str, "`unit` must be a str")
        self._check_type(metric_type, MetricTypes, "`metric_type` must be a MetricTypes enum")
        if dimension_names:
            self._check_type(dimension_names, list, "`dimension_names` should be a list of dimension name strings")
        metrics = self.cache.setdefault(metric_type, {})
        if metric_name in metrics:
            logging.warning("Overriding existing key %s:%s", metric_type, metric_name)
        metrics[metric_name] = CachingMetric(metric_name, unit, dimension_names, metric_type)
        return metrics[metric_name]  # type: ignore[no-any-return]

    def get_metric(self, metric_name: str, metric_type: MetricTypes = MetricTypes.COUNTER) -> CachingMetric:
        """Give a metric. Raises MetricsCacheKeyError when there is none of that type and name."""
        self._check_type(metric_name, str, "`metric_name` must be a str")
        self._check_type(metric_type, MetricTypes, "`metric_type` must be a MetricTypes enum")
        try:
            return self.cache[metric_type][metric_name]  # type: ignore[no-any-return]
        except KeyError:
            raise merrors.MetricsCacheKeyError(
                "Metric of type '%s' and name '%s' doesn't exist" % (metric_type, metric_name)
            ) from None

    def cache_keys(self) -> List[str]:
        """ "type:name" of every metric."""
        return ["%s:%s" % (metric_type.value, name) for metric_type, metrics in self.cache.items() for name in metrics]


def _packaged() -> Dict[str, Any]:
    """What configs/metrics.yaml says of models (a test compares the two): no start of a worker has to read it."""
    dimensions = ["ModelName", "Level"]
    return {
        "model_metrics": {
            "gauge": [
                {"name": "HandlerTime", "unit": "ms", "dimensions": dimensions},
                {"name": "PredictionTime", "unit": "ms", "dimensions": list(dimensions)},
            ]
        }
    }
