#!/usr/bin/env python3
"""Make the calls of KServe's client that matter, and look at what comes back.

tritonclient cannot be in the same process: both bring the protocol's messages.

usage: kserve_calls.py HOST:PORT HOST:PORT        the server's REST and gRPC, with the models of repository.py

Exit status 1 with a traceback if anything is not as it has to be.
"""

from __future__ import annotations

import asyncio
import sys

import kserve
import numpy as np

A = np.arange(4, dtype=np.float32).reshape(1, 4)
B = np.ones((1, 4), np.float32)


def request(binary: bool) -> kserve.InferRequest:
    """A sum and a difference."""
    given = [kserve.InferInput(name, [1, 4], "FP32") for name in ("INPUT0", "INPUT1")]
    for tensor, value in zip(given, (A, B), strict=True):
        tensor.set_data_from_numpy(value, binary_data=binary)
    return kserve.InferRequest(model_name="addsub", infer_inputs=given)


def check(answer: kserve.InferResponse) -> None:
    """Require the sum."""
    assert answer.outputs[0].as_numpy().reshape(1, 4).tolist() == (A + B).tolist(), answer


async def ask(http: str, grpc: str) -> None:
    """REST in both of its forms, and gRPC."""
    base = "http://" + http
    rest = kserve.InferenceRESTClient(kserve.RESTConfig(protocol="v2"))
    assert await rest.is_server_live(base)
    assert await rest.is_server_ready(base)
    assert await rest.is_model_ready(base, "addsub")
    for binary in (False, True):
        check(await rest.infer(base, request(binary), model_name="addsub"))
    over_grpc = kserve.InferenceGRPCClient(grpc)
    assert await over_grpc.is_server_live()
    assert await over_grpc.is_model_ready("addsub")
    check(await over_grpc.infer(request(True)))


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    asyncio.run(ask(sys.argv[1], sys.argv[2]))
