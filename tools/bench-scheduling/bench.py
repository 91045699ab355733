"""Measures how requests are scheduled, with real processes, and compares within one run.

Four cells: what a lone client waits for others; the throughput of 64 clients, beside the best of a grid over batch size and
delay; three times the load that a server can bear; and a load that goes up and down again, which the workers follow. A real
TorchServe is beside where there is one. Latencies are in milliseconds, rates in answers per second.

The standard library only. Servers are started and ended here, each in a folder of its own.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import overload
import step
from server import Server, archive, table

LONE_FIXED, LONE_LEARNS, LONE_COUNT = 20, 10, 100
LONE_ADDED, MANY_RATE = 0.05, 0.95
CLIENTS, FIXED, EACH = 64, 20, 2
SIZES, DELAYS = (8, 16, 32, 48, 64), (1, 5, 20, 100)
ROOM = "job_queue_size=1000\n"  # where nothing is to be refused
CELLS = ("lone", "many", "overload", "step")


class Bench:
    """What the cells need to start servers."""

    def __init__(self, options: argparse.Namespace, work: Path) -> None:
        self.options, self.work = options, work
        self.store = work / "store"
        self.store.mkdir()
        self._count = 0

    @contextmanager
    def server(self, bin_dir: Path, settings: str) -> Iterator[Server]:
        self._count += 1
        server = Server(bin_dir.resolve(), self.work / f"server{self._count}", self.store, settings)
        try:
            yield server
        finally:
            server.close()

    def lone(self) -> list[str]:
        """Prints what batch 8 and delay 100 ms add to a lone client's median latency."""
        archive(self.store, "lone", LONE_FIXED, 0)
        print(
            f"## A lone client\n\nA handler of {LONE_FIXED} ms, after the client's first {LONE_LEARNS} requests. Batch 8 has a "
            "delay of 100 ms.\n",
            flush=True,
        )
        ours, peer = self.options.bin, self.options.peer
        servers = [("Flambeau", ours, ""), ("Flambeau, `batching: torchserve`", ours, "batching=torchserve\n")]
        if peer:
            servers.append(("TorchServe", peer, ""))
        rows, good = [], True
        for i, (name, bin_dir, extra) in enumerate(servers):
            samples = []
            with self.server(bin_dir, ROOM + extra) as server:
                for size in (1, 8):
                    server.serve("lone", size, 100)
                    samples.append(server.load("lone", 1, count=LONE_COUNT + LONE_LEARNS, skip=LONE_LEARNS))
                    server.end("lone")
            alone, batched = (statistics.median(s.latencies) * 1000 for s in samples)
            added = (batched - alone) / LONE_FIXED
            good = good and (i > 0 or added < LONE_ADDED)
            p99, bound = f"{samples[1].percentile(99):.1f} ms", f"{LONE_ADDED:.0%}" if i == 0 else ""
            rows.append([name, f"{alone:.1f} ms", f"{batched:.1f} ms", p99, f"{added:.1%}", bound])
        table(["", "median, batch 1", "median, batch 8", "p99, batch 8", "added, of the handler's time", "bound"], rows)
        return [] if good else ["a lone client: added latency"]

    def many(self) -> list[str]:
        """Prints the throughput of many clients, beside the best of a grid."""
        archive(self.store, "grid", FIXED, EACH, "batching: torchserve\n")
        archive(self.store, "adaptive", FIXED, EACH)
        archive(self.store, "slo", FIXED, EACH, "slo: {p99_ms: 400}\n")
        print(
            f"## {CLIENTS} clients\n\nA handler of {FIXED} ms + {EACH} ms for each request, one worker. Answers per second "
            "by batch size and delay:\n",
            flush=True,
        )
        with self.server(self.options.bin, ROOM) as server:
            return self._many(server, self.options.seconds)

    def _many(self, server: Server, seconds: float) -> list[str]:
        best, where, rows = 0.0, "", []
        for size in SIZES:
            row = []
            for delay in DELAYS:
                server.serve("grid", size, delay)
                row.append(server.load("grid", CLIENTS, seconds=seconds + 1, warm=1).rate)
                server.end("grid")
                if row[-1] > best:
                    best, where = row[-1], f"size {size}, delay {delay} ms"
            rows.append([str(size), *(f"{rate:.1f}" for rate in row)])
        table(["size", *(f"{delay} ms" for delay in DELAYS)], rows)
        rows, missed = [[f"best of the grid ({where})", f"{best:.1f}/s", "", "", ""]], []
        for model, text in (("adaptive", "Flambeau"), ("slo", "Flambeau, `slo: {p99_ms: 400}`")):
            server.serve(model, max(SIZES), 100)
            # Else full batches would leave by TorchServe's rule, and nothing learned be measured.
            server.load(model, 1, count=LONE_LEARNS + 2)
            s = server.load(model, CLIENTS, seconds=3 * seconds + 3, warm=3)
            server.end(model)
            rows.append([text, f"{s.rate:.1f}/s", f"{s.rate / best:.1%}", f"{MANY_RATE:.0%}", f"{s.percentile(99):.0f} ms"])
            if s.rate < MANY_RATE * best:
                missed.append(f"{CLIENTS} clients: throughput of {text}")
        table(["", "answers", "of the best", "bound", "p99"], rows)
        return missed

    def overload(self) -> list[str]:
        archive(self.store, "overload", overload.FIXED, overload.EACH)
        names = [("Flambeau", self.options.bin)]
        if self.options.peer:
            names.append(("TorchServe", self.options.peer))
        measured = []
        for name, bin_dir in names:
            with self.server(bin_dir, "") as server:
                measured.append((name, overload.measure(server, self.options.load, self.options.overload_seconds)))
        return overload.report(measured, self.options.overload_seconds)

    def step(self) -> list[str]:
        archive(self.store, "step", step.FIXED, step.EACH, step.SETTINGS)
        with self.server(self.options.bin, f"autoscale_calm_time={step.CALM}\n") as server:
            return step.step(server, self.options.load)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bin", type=Path, required=True, help="folder with the torchserve command of the wheel")
    parser.add_argument("--load", type=Path, required=True, help="the load generator, which is built from load/")
    parser.add_argument("--peer", type=Path, help="the same as --bin of a real TorchServe; without it that is left out")
    parser.add_argument("--seconds", type=float, default=4, help="of each point of the grid")
    parser.add_argument("--overload-seconds", type=float, default=60, help="of the overload")
    parser.add_argument("--cells", default=",".join(CELLS), help="which ones, with commas between")
    parser.add_argument("--check", action="store_true", help="the status is 1 when a bound is missed")
    options = parser.parse_args()
    missed = []
    with tempfile.TemporaryDirectory() as folder:
        bench = Bench(options, Path(folder))
        for cell in options.cells.split(","):
            if cell not in CELLS:
                parser.error(f"--cells: there is no {cell!r}; there are {', '.join(CELLS)}")
            missed += getattr(bench, cell)()
    print("Missed: " + "; ".join(missed) if missed else "Every bound is kept.")
    return 1 if missed and options.check else 0


if __name__ == "__main__":
    sys.exit(main())
