"""PyTriton: its own Python workers behind Triton."""

import os
import sysconfig

# Triton's Python backend loads libpython, which has to fit this Python's standard library
os.environ["LD_LIBRARY_PATH"] = f"{sysconfig.get_config_var('LIBDIR')}:{os.environ.get('LD_LIBRARY_PATH', '')}"

import model
import numpy as np
import rows
from pytriton.model_config import DynamicBatcher, ModelConfig, Tensor
from pytriton.triton import Triton, TritonConfig

WORKERS, BATCH, PORT = (int(os.environ[f"BENCH_{k}"]) for k in ("N", "BS", "PORT"))


class Model:
    run = None

    def __call__(self, requests):
        if self.run is None:
            self.run = model.make()
        return [{"y": y} for y in rows.answer(self.run, [r["x"] for r in requests])]


if __name__ == "__main__":
    where = {
        f"{kind}_{what}": v
        for k, kind in enumerate(("http", "grpc", "metrics"))
        for what, v in (("address", "127.0.0.1"), ("port", PORT + k))
    }
    triton = Triton(config=TritonConfig(**where), workspace=f"{os.environ['BENCH_RUNDIR']}/workspace")
    batcher = DynamicBatcher(max_queue_delay_microseconds=5000 if BATCH > 1 else 0)
    triton.bind(
        model_name="m",
        infer_func=[Model() for _ in range(WORKERS)],
        inputs=[Tensor(name="x", dtype=np.uint8, shape=(-1,))],
        outputs=[Tensor(name="y", dtype=bytes, shape=(1,))],
        config=ModelConfig(batching=True, max_batch_size=BATCH, batcher=batcher),
    )
    triton.serve()
