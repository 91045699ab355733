"""Memory of processes; needs psutil."""

from __future__ import annotations

import logging

import psutil

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import TextIO, Union


def get_cpu_usage(pid: Union[int, str]) -> int:
    """Resident memory of a process in bytes (whatever the name says); 0, with an error logged, when it cannot be read."""
    try:
        return int(psutil.Process(int(pid)).memory_info().rss)
    except psutil.Error:
        logging.error("Failed get process for pid: %s", pid, exc_info=True)
        return 0


def check_process_mem_usage(stdin: TextIO) -> None:
    """Read a line of pids, joined by commas, and log "pid:bytes" for each."""
    for pid in stdin.readline().strip().split(","):
        if pid:
            logging.info("%s:%d", pid, get_cpu_usage(pid))
