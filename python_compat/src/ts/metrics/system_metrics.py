"""Metrics of the machine; needs psutil, and nvgpu and pynvml for GPUs. Flambeau's server measures these by itself."""

from __future__ import annotations

import inspect
import logging

import psutil

from ts.metrics.dimension import Dimension
from ts.metrics.metric import Metric

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import ModuleType
    from typing import List

system_metrics: List[Metric] = []
dimension = [Dimension("Level", "Host")]

_MEBIBYTE, _GIBIBYTE = 2**20, 2**30


def _add(name: str, value: float, unit: str) -> None:
    system_metrics.append(Metric(name, value, unit, dimension))


def cpu_utilization() -> None:
    """CPUUtilization, percent."""
    _add("CPUUtilization", psutil.cpu_percent(), "percent")


def memory_used() -> None:
    """MemoryUsed, mebibytes."""
    _add("MemoryUsed", psutil.virtual_memory().used / _MEBIBYTE, "MB")


def memory_available() -> None:
    """MemoryAvailable, mebibytes."""
    _add("MemoryAvailable", psutil.virtual_memory().available / _MEBIBYTE, "MB")


def memory_utilization() -> None:
    """MemoryUtilization, percent."""
    _add("MemoryUtilization", psutil.virtual_memory().percent, "percent")


def disk_used() -> None:
    """DiskUsage of /, gibibytes."""
    _add("DiskUsage", psutil.disk_usage("/").used / _GIBIBYTE, "GB")


def disk_utilization() -> None:
    """DiskUtilization of /, percent."""
    _add("DiskUtilization", psutil.disk_usage("/").percent, "percent")


def disk_available() -> None:
    """DiskAvailable of /, gibibytes."""
    _add("DiskAvailable", psutil.disk_usage("/").free / _GIBIBYTE, "GB")


def gpu_utilization(num_of_gpu: int) -> None:
    """GPUMemoryUtilization, GPUMemoryUsed and GPUUtilization of each GPU; nothing when there is none."""
    if num_of_gpu <= 0:
        return
    import nvgpu
    import pynvml
    from nvgpu import list_gpus

    for gpu in nvgpu.gpu_info():
        where = [Dimension("Level", "Host"), Dimension("device_id", gpu["index"])]
        system_metrics.append(Metric("GPUMemoryUtilization", gpu["mem_used_percent"], "percent", where))
        system_metrics.append(Metric("GPUMemoryUsed", gpu["mem_used"], "MB", where))
    try:
        statuses = list_gpus.device_statuses()
    except pynvml.nvml.NVMLError_NotSupported:
        logging.error("gpu device monitoring not supported")
        return
    for index, status in enumerate(statuses):
        where = [Dimension("Level", "Host"), Dimension("device_id", index)]
        system_metrics.append(Metric("GPUUtilization", status["utilization"], "percent", where))


def collect_all(mod: ModuleType, num_of_gpu: int) -> None:
    """Run the measuring functions of a module such as this one, and log what was measured and an empty line."""
    for name, function in inspect.getmembers(mod, inspect.isfunction):
        if name == "gpu_utilization":
            function(num_of_gpu)
        elif name not in ("collect_all", "log_msg") and not name.startswith("_"):
            function()
    for metric in system_metrics:
        logging.info(str(metric))
    logging.info("")
