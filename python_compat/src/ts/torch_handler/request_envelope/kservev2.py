"""Envelope "kservev2": KServe's V2 protocol; needs numpy."""

from __future__ import annotations

import json

import numpy as np

from ts.torch_handler.request_envelope.base import BaseEnvelope, payload

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Dict, List

_DatatypeToNumpy = {
    "BOOL": "bool",
    "UINT8": "uint8",
    "UINT16": "uint16",
    "UINT32": "uint32",
    "UINT64": "uint64",
    "INT8": "int8",
    "INT16": "int16",
    "INT32": "int32",
    "INT64": "int64",
    "FP16": "float16",
    "FP32": "float32",
    "FP64": "float64",
    "BYTES": "byte",
}
# numpy has more types than the protocol: objects, and texts by their kind, are bytes there.
_NumpyToDatatype = dict({name: datatype for datatype, name in _DatatypeToNumpy.items()}, object="BYTES", U="BYTES")


def _to_dtype(datatype: str) -> Any:
    """numpy's type of a datatype of the protocol. Raises KeyError for an unknown one."""
    return np.dtype(_DatatypeToNumpy[datatype])


def _to_datatype(dtype: Any) -> str:
    """The protocol's datatype of a type of numpy. Raises KeyError when it has none."""
    name = str(dtype)
    return _NumpyToDatatype[name if name in _NumpyToDatatype else dtype.kind]


class KServev2Envelope(BaseEnvelope):
    """The handler gets the first request's inputs, dicts whose "data" is in the input's shape (the first element for BYTES).

    It returns one result for each input; each is answered flat, under the input's name, with the datatype that numpy finds.
    Only for batches of one request.
    """

    def parse_input(self, data: Any) -> List[Dict[str, Any]]:
        """From rows to what the handler takes."""
        return self._batch_from_json(data)

    def _batch_from_json(self, rows: Any) -> List[Dict[str, Any]]:
        return self._from_json([payload(row) for row in rows])

    def _from_json(self, body_list: List[Any]) -> List[Dict[str, Any]]:
        body = body_list[0]
        if isinstance(body, (bytes, bytearray)):
            body = json.loads(body.decode("utf-8"))
        inputs = body["inputs"]
        for one in inputs:
            if one["datatype"] == "BYTES":
                one["data"] = one["data"][0]
            else:
                one["data"] = np.array(one["data"]).reshape(tuple(one["shape"])).tolist()
        # A handler may read these two of the context, which keeps them from parse_input to format_output.
        self.context.input_names = [one["name"] for one in inputs]
        request_id = body.get("id")
        if request_id and request_id.strip():
            self.context.input_request_id = request_id
        return inputs  # type: ignore[no-any-return]

    def format_output(self, data: Any) -> List[Dict[str, Any]]:
        """From results to answers."""
        context = self.context
        response = {"id": vars(context).pop("input_request_id", None) or context.get_request_id(0)}
        model = context.manifest.get("model")
        response["model_name"] = model.get("modelName")
        response["model_version"] = model.get("modelVersion")
        response["outputs"] = self._batch_to_json(data)
        return [response]

    def _batch_to_json(self, data: Any) -> List[Dict[str, Any]]:
        names = vars(self.context).pop("input_names")
        return [self._to_json(item, names[index]) for index, item in enumerate(data)]

    def _to_json(self, data: Any, input_name: str) -> Dict[str, Any]:
        flat = np.array(data).flatten()
        return {"name": input_name, "datatype": _to_datatype(flat.dtype), "data": flat.tolist(), "shape": flat.shape}
