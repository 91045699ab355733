import numpy as np
import torch


class Rows(list):
    pass


Rows.__module__ = "elsewhere"
VALUES = {
    "tuple": lambda: ("a",),
    "dict": lambda: {0: "a"},
    "text": lambda: "a",
    "none": lambda: None,
    "generator": lambda: (x for x in "a"),
    "array": lambda: np.zeros(1),
    "tensor": lambda: torch.zeros(1),
    "number": lambda: 1,
    "bytes": lambda: b"a",
    "subclass": lambda: Rows(["a subclass of list is a list"]),
}


def handle(data, context):
    if data is None:
        return None
    return VALUES[data[0]["body"]]()
