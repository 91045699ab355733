"""onnxruntime in a tight loop: what no server can beat. Reads "ROWS SECONDS", prints {"rps", "p50", "p99"} in milliseconds."""

import json
import sys
import time

import model
import numpy as np


def main() -> None:
    run, zeros = model.session()
    rng = np.random.default_rng(0)
    for line in sys.stdin:
        rows, seconds = int(line.split()[0]), float(line.split()[1])
        x = np.repeat(zeros, rows, 0)
        x = rng.integers(0, 256, x.shape, np.int32) if x.dtype == np.int32 else rng.standard_normal(x.shape, np.float32)
        run(x)
        times = []
        began = time.perf_counter()
        while time.perf_counter() - began < seconds:
            at = time.perf_counter()
            run(x)
            times.append((time.perf_counter() - at) * 1000)
        took = time.perf_counter() - began
        times.sort()
        p50, p99 = times[len(times) // 2], times[min(len(times) - 1, len(times) * 99 // 100)]
        print(json.dumps({"rps": len(times) * rows / took, "p50": p50, "p99": p99, "total": len(times) * rows}), flush=True)


if __name__ == "__main__":
    main()
