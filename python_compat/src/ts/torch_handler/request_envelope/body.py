"""Envelope "body": the handler gets each row's payload itself."""

from __future__ import annotations

from ts.torch_handler.request_envelope.base import BaseEnvelope, payload

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, List


class BodyEnvelope(BaseEnvelope):
    """A list of what each row has as "data" or "body"; results stay as they are."""

    def parse_input(self, data: Any) -> List[Any]:
        """From rows to what the handler takes."""
        return [payload(row) for row in data]

    def format_output(self, data: Any) -> Any:
        """From results to answers."""
        return data
