"""What an envelope is."""

from __future__ import annotations

import abc

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Callable


class BaseEnvelope(abc.ABC):
    """Stands around a handler's entry point: parse_input makes its data of the rows, format_output the answers of its results."""

    def __init__(self, handle_fn: Callable[[Any, Any], Any]) -> None:
        self._handle_fn = handle_fn
        self.context: Any = None

    def handle(self, data: Any, context: Any) -> Any:
        """The entry point in its envelope. Empty data and empty results pass as they are."""
        self.context = context
        results = self._handle_fn(self.parse_input(data) if data else data, context)
        return self.format_output(results) if results else results

    @abc.abstractmethod
    def parse_input(self, data: Any) -> Any:
        """From a list of rows to what the handler takes."""

    @abc.abstractmethod
    def format_output(self, data: Any) -> Any:
        """From what the handler returned to a list with one element per row."""


def payload(row: Any) -> Any:
    """The row's "data", or its "body" when that is missing or empty."""
    return row.get("data") or row.get("body")
