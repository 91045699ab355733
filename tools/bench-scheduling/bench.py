"""Measures how requests are scheduled, with real processes, and compares within one run.

Two cells: what a lone client waits for others, beside a real TorchServe where there is one; and the throughput
of 64 clients, beside the best of a grid over batch size and delay. Latencies are in milliseconds, rates in answers
per second. The status is 1 when a bound is missed.

The standard library only. Servers are started and ended here, each in a folder of its own.
"""

from __future__ import annotations

import argparse
import http.client
import json
import os
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import zipfile
from pathlib import Path
from typing import Any, NamedTuple

HANDLER = '''
import time


class Handler:
    """Takes FIXED ms for each batch and EACH ms for each request of it."""

    def initialize(self, context):
        pass

    def handle(self, data, context):
        time.sleep((FIXED + EACH * len(data)) / 1000)
        return [str(len(data))] * len(data)
'''

LONE_FIXED, LONE_LEARNS, LONE_COUNT = 20, 10, 100
CLIENTS, FIXED, EACH = 64, 20, 2
SIZES, DELAYS = (8, 16, 32, 48, 64), (1, 5, 20, 100)


class Sample(NamedTuple):
    """What clients have seen: a rate, and latencies in order of size."""

    rate: float
    latencies: list[float]

    def percentile(self, percent: float) -> float:
        return self.latencies[min(int(len(self.latencies) * percent / 100), len(self.latencies) - 1)] * 1000


def archive(store: Path, name: str, fixed: int, each: int, settings: str = "") -> None:
    """Writes a model archive whose handler takes a known time."""
    manifest: dict[str, Any] = {
        "createdOn": "",
        "runtime": "python",
        "model": {"modelName": name, "handler": "cost.py", "modelVersion": "1.0"},
        "archiverVersion": "0.12.0",
    }
    with zipfile.ZipFile(store / f"{name}.mar", "w") as mar:
        mar.writestr("cost.py", HANDLER.replace("FIXED", str(fixed)).replace("EACH", str(each)))
        if settings:
            manifest["model"]["configFile"] = "model-config.yaml"
            mar.writestr("model-config.yaml", settings)
        mar.writestr("MAR-INF/MANIFEST.json", json.dumps(manifest))


def free_port() -> int:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return int(s.getsockname()[1])


class Server:
    """A server that runs until close is called."""

    def __init__(self, bin_dir: Path, work: Path, store: Path, extra: str = "") -> None:
        work.mkdir(parents=True)
        self.inference, self.management = free_port(), free_port()
        config = work / "config.properties"
        config.write_text(
            f"inference_address=http://127.0.0.1:{self.inference}\nmanagement_address=http://127.0.0.1:{self.management}\n"
            f"metrics_address=http://127.0.0.1:{free_port()}\ngrpc_inference_port={free_port()}\ngrpc_management_port={free_port()}\n"
            f"model_store={store}\ndisable_token_authorization=true\nenable_model_api=true\njob_queue_size=1000\n{extra}"
        )
        environment = {
            **os.environ,
            "PATH": f"{bin_dir}:{os.environ['PATH']}",
            "LOG_LOCATION": str(work),
            "METRICS_LOCATION": str(work),
            "TEMP": str(work),
        }
        self.log = (work / "console.log").open("w")
        self.process = subprocess.Popen(
            [bin_dir / "torchserve", "--start", "--foreground", "--ncs", "--model-store", store, "--ts-config", config],
            cwd=work, env=environment, stdout=self.log, stderr=subprocess.STDOUT, start_new_session=True,
        )  # fmt: skip
        end = time.monotonic() + 120
        while not self._up():
            if self.process.poll() is not None or time.monotonic() > end:
                self.close()
                raise SystemExit(f"the server did not come up; see {work}/console.log")
            time.sleep(0.2)

    def _up(self) -> bool:
        try:
            with socket.create_connection(("127.0.0.1", self.management), 1), socket.create_connection(
                ("127.0.0.1", self.inference), 1
            ):
                return True
        except OSError:
            return False

    def manage(self, method: str, path: str) -> None:
        c = http.client.HTTPConnection("127.0.0.1", self.management, timeout=120)
        c.request(method, path)
        r = c.getresponse()
        body = r.read()
        c.close()
        if r.status >= 300:
            raise SystemExit(f"{method} {path}: {r.status} {body!r}")

    def serve(self, mar: str, size: int, delay: int) -> None:
        self.manage("POST", f"/models?url={mar}.mar&batch_size={size}&max_batch_delay={delay}&initial_workers=1&synchronous=true")

    def end(self, model: str) -> None:
        self.manage("DELETE", f"/models/{model}")

    def load(self, model: str, clients: int, seconds: float = 0, count: int = 0, skip: int = 0, warm: float = 0) -> Sample:
        """Has clients send one request after the other, for so long or so many each, and counts those after the first ones."""
        begun = time.monotonic()
        kept: list[list[float]] = [[] for _ in range(clients)]

        def one(mine: list[float]) -> None:
            c = http.client.HTTPConnection("127.0.0.1", self.inference, timeout=60)
            sent = 0
            while sent < count or time.monotonic() - begun < seconds:
                at = time.monotonic()
                c.request("POST", f"/predictions/{model}", body=b"x", headers={"Content-Type": "text/plain"})
                r = c.getresponse()
                body = r.read()
                if r.status != 200:
                    raise SystemExit(f"{model}: {r.status} {body!r}")
                sent += 1
                if sent > skip and at - begun >= warm:
                    mine.append(time.monotonic() - at)
            c.close()

        threads = [threading.Thread(target=one, args=(mine,)) for mine in kept]
        for t in threads:
            t.start()
        for t in threads:
            t.join()
        latencies = sorted(x for mine in kept for x in mine)
        if not latencies:
            raise SystemExit(f"{model}: no answers")
        return Sample(len(latencies) / max(seconds - warm, 1e-9), latencies)

    def close(self) -> None:
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGTERM)
            try:
                self.process.wait(30)
            except subprocess.TimeoutExpired:
                os.killpg(self.process.pid, signal.SIGKILL)
                self.process.wait()
        self.log.close()


def lone(name: str, server: Server) -> float:
    """Gives what batch 8 and delay 100 ms add to a lone client's median latency, as a part of the handler's time."""
    medians = []
    for size, delay in ((1, 100), (8, 100)):
        server.serve("lone", size, delay)
        s = server.load("lone", 1, count=LONE_COUNT + LONE_LEARNS, skip=LONE_LEARNS)
        medians.append(statistics.median(s.latencies) * 1000)
        print(f"  {name:<34} batch {size}, delay {delay}: median {medians[-1]:7.2f} ms, p99 {s.percentile(99):7.2f} ms")
        server.end("lone")
    added = medians[1] - medians[0]
    print(f"  {name:<34} added by the batch: {added:7.2f} ms, {added / LONE_FIXED:.1%} of the handler's {LONE_FIXED} ms")
    return added / LONE_FIXED


def many(server: Server, seconds: float) -> bool:
    """Compares the throughput of many clients with the best of a grid, and says whether it is near enough."""
    best, where = 0.0, ""
    for size in SIZES:
        row = []
        for delay in DELAYS:
            server.serve("grid", size, delay)
            rate = server.load("grid", CLIENTS, seconds=seconds + 1, warm=1).rate
            server.end("grid")
            row.append(rate)
            if rate > best:
                best, where = rate, f"size {size}, delay {delay} ms"
        print(f"  grid, size {size:<3} " + "  ".join(f"delay {d:>3}: {r:6.1f}/s" for d, r in zip(DELAYS, row)))
    print(f"  the best of the grid: {best:.1f}/s ({where})")
    good = True
    for model, text in (("adaptive", "the default"), ("slo", "slo: {p99_ms: 400}")):
        server.serve(model, max(SIZES), 100)
        server.load(
            model, 1, count=LONE_LEARNS + 2
        )  # else full batches would leave by TorchServe's rule, and nothing learned be measured
        s = server.load(model, CLIENTS, seconds=3 * seconds + 3, warm=3)
        server.end(model)
        good = good and s.rate >= 0.95 * best
        print(f"  {text:<20} {s.rate:6.1f}/s, {s.rate / best:.1%} of the best (bound: 95 %); p99 {s.percentile(99):.1f} ms")
    return good


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bin", type=Path, required=True, help="folder with the torchserve command of the wheel")
    parser.add_argument("--peer", type=Path, help="the same of a real TorchServe; without it that is left out")
    parser.add_argument("--seconds", type=float, default=4, help="of each point of the grid")
    options = parser.parse_args()
    good = True
    with tempfile.TemporaryDirectory() as folder:
        work, store = Path(folder), Path(folder) / "store"
        store.mkdir()
        archive(store, "lone", LONE_FIXED, 0)
        archive(store, "grid", FIXED, EACH, "batching: torchserve\n")
        archive(store, "adaptive", FIXED, EACH)
        archive(store, "slo", FIXED, EACH, "slo: {p99_ms: 400}\n")
        print(f"A lone client, handler of {LONE_FIXED} ms, after its first {LONE_LEARNS} requests")
        servers = [("Flambeau", options.bin, ""), ("Flambeau, batching=torchserve", options.bin, "batching=torchserve\n")]
        if options.peer:
            servers.append(("TorchServe", options.peer, ""))
        for i, (name, bin_dir, extra) in enumerate(servers):
            server = Server(bin_dir.resolve(), work / f"server{i}", store, extra)
            try:
                added = lone(name, server)
                good = good and (i > 0 or added < 0.05)
            finally:
                server.close()
        print(f"{CLIENTS} clients, handler of {FIXED} ms + {EACH} ms for each request, one worker")
        server = Server(options.bin.resolve(), work / "many", store)
        try:
            good = many(server, options.seconds) and good
        finally:
            server.close()
    print("every bound is kept" if good else "A BOUND IS MISSED")
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
