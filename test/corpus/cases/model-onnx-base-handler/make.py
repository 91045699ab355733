"""A model y = x * [2, 3] + 1 in ONNX's format, written by hand: the package onnx is not needed."""

import struct
from pathlib import Path


def number(value):
    out = b""
    while value > 127:
        out, value = out + bytes([value & 127 | 128]), value >> 7
    return out + bytes([value])


def field(index, value):
    """One protobuf field: a number, or bytes (a text, a packed list, another message)."""
    if isinstance(value, int):
        return number(index << 3) + number(value)
    value = value.encode() if isinstance(value, str) else value
    return number(index << 3 | 2) + number(len(value)) + value


def tensor(name, values):
    return field(1, len(values)) + field(2, 1) + field(8, name) + field(9, struct.pack("<%df" % len(values), *values))


def node(operation, inputs, output):
    return b"".join(field(1, name) for name in inputs) + field(2, output) + field(4, operation)


def value(name):
    shape = field(1, field(2, "batch")) + field(1, field(1, 2))
    return field(1, name) + field(2, field(1, field(1, 1) + field(2, shape)))


graph = (
    field(1, node("Mul", ["x", "factor"], "product"))
    + field(1, node("Add", ["product", "one"], "y"))
    + field(2, "affine")
    + field(5, tensor("factor", [2.0, 3.0]))
    + field(5, tensor("one", [1.0]))
    + field(11, value("x"))
    + field(12, value("y"))
)
Path("model.onnx").write_bytes(field(1, 8) + field(7, graph) + field(8, field(1, "") + field(2, 13)))
