"""The units of metrics."""

from __future__ import annotations


class Units:
    """`units` maps the short names of units to the words in metric lines; other units stay as they are."""

    def __init__(self) -> None:
        self.units = {
            "ms": "Milliseconds",
            "s": "Seconds",
            "percent": "Percent",
            "count": "Count",
            "MB": "Megabytes",
            "GB": "Gigabytes",
            "kB": "Kilobytes",
            "B": "Bytes",
            "": "unit",
            None: "unit",
        }
