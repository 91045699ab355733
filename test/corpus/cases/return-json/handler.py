import collections
import enum

import numpy as np


class Values:
    class Level(enum.IntEnum):
        HIGH = 3

    class Text(str):
        pass

    Point = collections.namedtuple("Point", "x y")
    values = {  # noqa: RUF012
        "dict": {"a": 1, "b": {"c": [1, 2, {"d": None}]}},
        "list": [1, "two", 3.5],
        "nested": [[1, [2, [3, []]]], {}],
        "int": 7,
        "float": 0.1 + 0.2,
        "special": [float("nan"), float("inf"), float("-inf"), -0.0, 1e-7, 1e16, 1e22],
        "big": [2**64, -(2**70)],
        "none": None,
        "true": True,
        "tuple": (1, (2, 3), ()),
        "keys": {1: "int", None: "none", False: "bool", "s": "str"},
        "text": ["größer", "犬 😀", 'quote " slash / back \\\\ tab \t nul \0 del \x7f'],
        "empty dict": {},
        "empty list": [],
        "ordered": collections.OrderedDict([("z", 1), ("a", 2)]),
        "enum": Level.HIGH,
        "named tuple": Point(1, 2),
        "subclass": {"text": Text("subclass of str")},
        "numpy float": [np.float64(0.5), {"x": np.float64(2)}],
        "surrogate": {"lone": "\ud800"},
        "float keys": {0.5: "half", 1e100: "large"},
        "counter": collections.Counter("aab"),
    }

    def initialize(self, context):
        pass

    def handle(self, data, context):
        return [self.values[row["body"]] for row in data]
