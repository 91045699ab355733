"""What the metrics object of a context raises."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


class GeneralMetricsCacheError(Exception):
    """A metrics configuration cannot be read, for a reason of no other class."""

    def __init__(self, message: object) -> None:
        super().__init__("Generic error: %s" % message)


class MetricsCacheIOError(OSError):
    """A metrics configuration file cannot be opened or read."""

    def __init__(self, message: object) -> None:
        super().__init__("Error reading file: %s" % message)


class MetricsCacheTypeError(TypeError):
    """An argument has the wrong type."""

    def __init__(self, message: object) -> None:
        super().__init__(str(message))


class MetricsCacheValueError(ValueError):
    """An argument, or the metrics configuration, has a wrong value."""

    def __init__(self, message: object) -> None:
        super().__init__(str(message))


class MetricsCacheKeyError(KeyError):
    """There is no such metric, or the metrics configuration lacks a key."""

    def __init__(self, message: object) -> None:
        super().__init__(str(message))


def __getattr__(name: str) -> Any:
    """MetricsCachePyYamlError derives from yaml.YAMLError where PyYAML is installed, so it is made when it is asked for."""
    if name != "MetricsCachePyYamlError":
        raise AttributeError("module %r has no attribute %r" % (__name__, name))
    try:
        from yaml import YAMLError as base
    except ImportError:
        from flambeau.worker.plainyaml import PlainYamlError as base  # type: ignore[assignment]  # one or the other

    def __init__(self: Any, message: object) -> None:
        base.__init__(self, "Error parsing file: %s" % message)

    made = type(name, (base,), {"__init__": __init__, "__module__": __name__, "__doc__": "A metrics configuration is not YAML."})
    globals()[name] = made
    return made
