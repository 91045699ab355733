"""A dimension of a metric."""

from __future__ import annotations


class Dimension:
    """A name and a value, by which metrics of one name are told apart."""

    def __init__(self, name: str, value: object) -> None:
        self.name = name
        self.value = value

    def __str__(self) -> str:
        return "%s:%s" % (self.name, self.value)

    def to_dict(self) -> dict[str, object]:
        """{"Name": ..., "Value": ...}"""
        return {"Name": self.name, "Value": self.value}
