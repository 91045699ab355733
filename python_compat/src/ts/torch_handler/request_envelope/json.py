"""Envelope "json": TensorFlow Serving's row format, {"instances": [...]} and {"predictions": [...]}."""

from __future__ import annotations

import base64
import json

from ts.torch_handler.request_envelope.base import BaseEnvelope, payload

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Dict, List


class JSONEnvelope(BaseEnvelope):
    """The handler gets the instances of all requests in one list; each request is answered with its own part of the results.

    {"b64": ...} in place of an instance, or of a value of an instance, is decoded to bytes.
    """

    _lengths: List[int] = []  # noqa: RUF012  # instances of each request of the batch

    def parse_input(self, data: Any) -> List[Any]:
        """From rows to what the handler takes."""
        requests = [self._from_json(row) for row in data]
        self._lengths = [len(instances) for instances in requests]
        return [instance for instances in requests for instance in instances]

    def format_output(self, data: Any) -> List[str]:
        """From results to answers."""
        answers, start = [], 0
        for length in self._lengths:
            answers.append(json.dumps({"predictions": data[start : start + length]}))
            start += length
        return answers

    def _from_json(self, data: Any) -> List[Any]:
        instances = (payload(data) or data)["instances"]
        if isinstance(instances[0], dict):  # instances are all of one kind
            instances[:] = [_decoded(instance) for instance in instances]
        return instances  # type: ignore[no-any-return]


def _is_base64(value: Any) -> bool:
    return isinstance(value, dict) and list(value) == ["b64"]


def _decoded(instance: Dict[str, Any]) -> Any:
    if _is_base64(instance):
        return base64.b64decode(instance["b64"])
    for name, value in instance.items():
        if _is_base64(value):
            instance[name] = base64.b64decode(value["b64"])
    return instance
