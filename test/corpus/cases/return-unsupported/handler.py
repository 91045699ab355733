import datetime
import decimal

import numpy as np
import torch

VALUES = {
    "set": {1, 2},
    "array": np.zeros(2),
    "float32": np.float32(1),
    "int64": [np.int64(1)],
    "bool_": np.bool_(True),
    "bytes inside": {"a": b"b"},
    "tensor inside": {"a": torch.ones(1)},
    "object": object(),
    "decimal": decimal.Decimal("1.5"),
    "date": datetime.date(2020, 1, 2),
    "memoryview": memoryview(b"abc"),
    "tuple key": {(1, 2): 3},
    "class": dict,
}


def handle(data, context):
    return data and [VALUES[row["body"]] for row in data]
