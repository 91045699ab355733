#!/usr/bin/env python3
"""Write a model store with the models that the client scripts ask for.

usage: repository.py FOLDER

addsub, versions 1 and 2: an ONNX model with INPUT0 and INPUT1 (FP32 [-1, 4]) and OUTPUT0, their sum, and OUTPUT1, their
difference.
repeat: a Python handler that streams the words of its text one by one.
Needs the standard library only: an ONNX model is a protobuf message, and this one is small enough to be written by hand.
"""

from __future__ import annotations

import json
import pathlib
import sys

FLOAT, WIRE_NUMBER, WIRE_BYTES = 1, 0, 2

HANDLER = '''\
"""Streams the words of a text one by one."""

import json

from ts.handler_utils.utils import send_intermediate_predict_response
from ts.utils.util import PredictionException


class Repeat:
    """A handler of TorchServe's kind."""

    def initialize(self, context):
        self.context = context

    def handle(self, rows, context):
        body = rows[0].get("body") or rows[0].get("data")
        try:
            if isinstance(body, (bytes, bytearray)):
                body = json.loads(body)
            text = body["inputs"][0]["data"][0] if "inputs" in body else body["text_input"]
            words = text.split()
        except (KeyError, IndexError, TypeError, AttributeError, ValueError) as error:
            raise PredictionException("a text is wanted: {\\"text_input\\": \\"one two\\"}", 400) from error
        for word in words[:-1]:
            send_intermediate_predict_response([word], context.request_ids, "Intermediate", 200, context)
        return [words[-1] if words else ""]
'''


def varint(value: int) -> bytes:
    """A number as protobuf writes it."""
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def number(field: int, value: int) -> bytes:
    """A field that is a number."""
    return varint(field << 3 | WIRE_NUMBER) + varint(value)


def part(field: int, value: bytes | str) -> bytes:
    """A field that is a text, or a message."""
    raw = value.encode() if isinstance(value, str) else value
    return varint(field << 3 | WIRE_BYTES) + varint(len(raw)) + raw


def port(name: str) -> bytes:
    """An input or output: FP32 [n, 4]."""
    shape = part(1, part(2, "n")) + part(1, number(1, 4))
    return part(1, name) + part(2, part(1, number(1, FLOAT) + part(2, shape)))


def addsub() -> bytes:
    """The model."""
    nodes = b"".join(
        part(1, part(1, "INPUT0") + part(1, "INPUT1") + part(2, output) + part(4, operator))
        for output, operator in (("OUTPUT0", "Add"), ("OUTPUT1", "Sub"))
    )
    ports = b"".join(part(11, port(n)) for n in ("INPUT0", "INPUT1")) + b"".join(
        part(12, port(n)) for n in ("OUTPUT0", "OUTPUT1")
    )
    return number(1, 8) + part(7, nodes + part(2, "addsub") + ports) + part(8, number(2, 17))


def write(store: pathlib.Path) -> None:
    """Write the store."""
    for version in ("1", "2"):
        folder = store / "addsub" / version
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "model.onnx").write_bytes(addsub())
        (folder / "model-config.yaml").write_text("minWorkers: 1\nmaxWorkers: 1\nbatchSize: 8\nmaxBatchDelay: 1\n")
    meta = store / "repeat" / "MAR-INF"
    meta.mkdir(parents=True, exist_ok=True)
    (store / "repeat" / "repeat.py").write_text(HANDLER)
    model = {"modelName": "repeat", "modelVersion": "1", "handler": "repeat.py"}
    (meta / "MANIFEST.json").write_text(
        json.dumps({"createdOn": "", "runtime": "python", "model": model, "archiverVersion": "0.9.0"})
    )


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    write(pathlib.Path(sys.argv[1]))
