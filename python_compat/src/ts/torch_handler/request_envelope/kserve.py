"""Envelope "kserve": KServe's V1 protocol."""

from __future__ import annotations

import json

from ts.torch_handler.request_envelope.base import BaseEnvelope, payload

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Dict, List


class KServeEnvelope(BaseEnvelope):
    """The handler gets the instances of the first request as its batch; the answer is {"predictions": its whole result}.

    Only for batches of one request. An explanation is answered as {"explanations": ...}.
    """

    def parse_input(self, data: Any) -> Any:
        """From rows to what the handler takes."""
        self._data_list = [payload(row) for row in data]
        body = self._data_list[0]
        if isinstance(body, (bytes, bytearray)):
            body = json.loads(body.decode("utf-8"))
        self._inputs = body.get("instances")
        return self._inputs

    def format_output(self, data: Any) -> List[Dict[str, Any]]:
        """From results to answers."""
        return [{"explanations" if self._is_explain() else "predictions": data}]

    def _is_explain(self) -> bool:
        return bool(self.context) and self.context.get_request_header(0, "explain") == "True"
