"""The model, one copy for every server: bodies in, JSON out. By BENCH_W, BENCH_MODELS and BENCH_THREADS."""

import os
from typing import Callable, List, Tuple

import numpy as np
import onnxruntime
import orjson

Run = Callable[[np.ndarray], np.ndarray]


def session() -> Tuple[Run, np.ndarray]:
    """What runs rows, and one row of zeros. The settings are those that Flambeau runs models with."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.inter_op_num_threads = int(os.environ["BENCH_THREADS"]), 1
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    path = f"{os.environ['BENCH_MODELS']}/{os.environ['BENCH_W']}.onnx"
    made = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    port = made.get_inputs()[0]
    names, name = [made.get_outputs()[0].name], port.name
    zeros = np.zeros((1, *port.shape[1:]), np.int32 if "int32" in port.type else np.float32)
    return lambda x: made.run(names, {name: x})[0], zeros


def make() -> Callable[[List[bytes]], List[bytes]]:
    """A function from bodies to JSON texts."""
    run, zeros = session()

    def answer(bodies: List[bytes]) -> List[bytes]:
        x = np.stack([np.frombuffer(b, dtype=zeros.dtype).reshape(zeros.shape[1:]) for b in bodies])
        return [orjson.dumps(row, option=orjson.OPT_SERIALIZE_NUMPY) for row in run(x)]

    return answer
