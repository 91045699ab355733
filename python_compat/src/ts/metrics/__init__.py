"""Metrics of handlers."""

import importlib

_MODULES = ("dimension", "metric", "metric_encoder", "metrics_store", "system_metrics", "unit")


def __getattr__(name):  # type: ignore[no-untyped-def]
    """TorchServe imports these submodules with the package; here each is imported when it is asked for: one needs psutil."""
    if name in _MODULES:
        return importlib.import_module("ts.metrics." + name)
    raise AttributeError("module 'ts.metrics' has no attribute %r" % name)
