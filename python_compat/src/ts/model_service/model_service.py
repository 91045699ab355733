"""Handlers in the manner of MXNet Model Server: a signature file says what comes in."""

from __future__ import annotations

import ast
import json
import logging
import os
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, List


class ModelService:
    """Runs `inference` on the payload of the first request."""

    def __init__(self, model_name: str, model_dir: str, manifest: Any, gpu: Any = None) -> None:
        self.ctx = None
        self._context: Any = None
        self._signature: Any = None

    def initialize(self, context: Any) -> None:
        """Read the signature file that the manifest names at Model.Signature. Raises ValueError when it is not there."""
        self._context = context
        path = os.path.join(context.system_properties.get("model_dir"), context.manifest["Model"]["Signature"])
        if not os.path.isfile(path):
            raise ValueError("Signature file is not found: %s" % path)
        with open(path, encoding="utf-8") as file:
            self._signature = json.load(file)

    def inference(self, data: Any) -> Any:
        """To be overridden: from a list of payloads to a list of results."""

    def ping(self) -> Any:
        """To be overridden: whether the service is healthy."""

    def signature(self) -> Any:
        """What the signature file says."""
        return self._signature

    def handle(self, data: Any, context: Any) -> List[Any]:
        """Answer with inference's result, in a list of its own unless it is one."""
        row = data[0]
        payload = row.get(self._signature["inputs"][0]["data_name"])
        for name in ("body", "data"):
            if payload is None:
                payload = row.get(name)
        if self._signature["input_type"] == "application/json" and isinstance(payload, (bytes, bytearray)):
            payload = ast.literal_eval(payload.decode("utf-8"))
        result = self.inference([payload])
        return result if isinstance(result, list) else [result]


class SingleNodeService(ModelService):
    """Runs three steps, to be overridden, and logs their times."""

    def inference(self, data: Any) -> Any:
        """The three steps, one after the other."""
        for name in ("preprocess", "inference", "postprocess"):
            begun = time.time()
            data = getattr(self, "_" + name)(data)
            logging.info("%s time: %.2f", name, (time.time() - begun) * 1000)
        return data

    def _preprocess(self, data: Any) -> Any:
        return data

    def _inference(self, data: Any) -> Any:
        return data

    def _postprocess(self, data: Any) -> Any:
        return data
