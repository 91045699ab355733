"""Servers, archives and loads of the measurements."""

from __future__ import annotations

import http.client
import json
import os
import signal
import socket
import subprocess
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


def percentile(ordered: list[float], percent: float) -> float:
    """The value at that place of an ordered list; 0 of an empty one."""
    return ordered[min(int(len(ordered) * percent / 100), len(ordered) - 1)] if ordered else 0.0


class Sample(NamedTuple):
    """What clients have seen: a rate, and latencies in seconds, in order of size."""

    rate: float
    latencies: list[float]

    def percentile(self, percent: float) -> float:
        """In milliseconds."""
        return percentile(self.latencies, percent) * 1000


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
    """A server that runs until close is called. settings are lines of its config.properties."""

    def __init__(self, bin_dir: Path, work: Path, store: Path, settings: str = "") -> None:
        work.mkdir(parents=True)
        self.work = work
        self.inference, self.management = free_port(), free_port()
        config = work / "config.properties"
        config.write_text(
            f"inference_address=http://127.0.0.1:{self.inference}\nmanagement_address=http://127.0.0.1:{self.management}\n"
            f"metrics_address=http://127.0.0.1:{free_port()}\ngrpc_inference_port={free_port()}\ngrpc_management_port={free_port()}\n"
            f"model_store={store}\ndisable_token_authorization=true\nenable_model_api=true\n{settings}"
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

    def manage(self, method: str, path: str) -> Any:
        """Asks the management API, and gives the object that it answers with."""
        c = http.client.HTTPConnection("127.0.0.1", self.management, timeout=120)
        c.request(method, path)
        r = c.getresponse()
        body = r.read()
        c.close()
        if r.status >= 300:
            raise SystemExit(f"{method} {path}: {r.status} {body!r}")
        return json.loads(body)

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

    def pid(self) -> int:
        """The process that serves, which is a child of the command where that is a script."""
        pids = [self.process.pid]
        for pid in pids:
            if Path(f"/proc/{pid}/comm").read_text().strip() in ("flambeau", "java"):
                return pid
            pids += [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
        return self.process.pid

    def close(self) -> None:
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGTERM)
            try:
                self.process.wait(30)
            except subprocess.TimeoutExpired:
                os.killpg(self.process.pid, signal.SIGKILL)
                self.process.wait()
        self.log.close()


class Request(NamedTuple):
    """A request of the load generator: times in seconds since 1970, -1 for none; status 0 is no answer."""

    due: float
    begun: float
    sent: float
    answered: float
    status: int
    kind: str

    @property
    def took(self) -> float:
        """From its begin, with the time for a connection, to its answer."""
        return self.answered - self.begun


class Generator:
    """The load generator, while it sends."""

    def __init__(self, command: Path, server: Server, model: str, *words: str) -> None:
        self._out, self._errors = server.work / "load.csv", server.work / "load.txt"
        with self._out.open("w") as out, self._errors.open("w") as errors:
            self.process = subprocess.Popen(
                [command, "-addr", f"127.0.0.1:{server.inference}", "-path", f"/predictions/{model}", *words],
                stdout=out, stderr=errors,
            )  # fmt: skip

    def finish(self) -> tuple[list[Request], list[str]]:
        """Waits for its end, and gives the requests and the first errors."""
        ended = self.process.wait()
        lines, errors = self._out.read_text().splitlines(), self._errors.read_text().splitlines()
        if ended != 0 or not lines:
            raise SystemExit(f"the load generator failed: {errors}")
        start = float(lines[0])
        requests = []
        for line in lines[1:]:
            *times, status, kind = line.split(",")
            due, begun, sent, answered = (float(t) if t == "-1" else start + float(t) for t in times)
            requests.append(Request(due, begun, sent, answered, int(status), kind))
        return requests, errors


def table(head: list[str], rows: list[list[str]]) -> None:
    """Prints a table in Markdown."""
    for row in [head, ["---"] * len(head), *rows]:
        print("| " + " | ".join(row) + " |")
    print(flush=True)
