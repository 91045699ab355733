"""Model of Triton's Python backend; see s_triton.py."""

import os
import sys

sys.path[:0] = os.environ["BENCH_PATH"].split(":")

import model  # noqa: E402
import rows  # noqa: E402
import triton_python_backend_utils as pb  # noqa: E402


class TritonPythonModel:
    def initialize(self, args):
        self.run = model.make()

    def execute(self, requests):
        arrays = [pb.get_input_tensor_by_name(r, "x").as_numpy() for r in requests]
        return [pb.InferenceResponse([pb.Tensor("y", y)]) for y in rows.answer(self.run, arrays)]
