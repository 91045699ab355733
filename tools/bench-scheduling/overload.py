"""Three times as many requests as a server can answer, whether or not answers come."""

from __future__ import annotations

import math
import statistics
import threading
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from server import Generator, Request, Server, percentile, table

BYTES = 1_000_000  # of a body
FIXED, EACH, BATCH, DELAY, QUEUE = 20, 2, 8, 100, 100  # the queue's size is the default of both servers
CLIENTS = 64  # that find the capacity
TIMES = 3
SETTLE, CAPACITY_SECONDS = 3, 12  # seconds
EVERY = 0.25  # seconds between two looks at the memory
REFUSED_MS, GOODPUT, FLAT = 5.0, 0.95, 1.1
BATCHES, BODIES = math.ceil(QUEUE / BATCH), QUEUE + 2 * BATCH
ROOM = 64_000_000


class Memory:
    """Looks at a process's resident memory until stop is called."""

    def __init__(self, pid: int) -> None:
        self._path = Path(f"/proc/{pid}/statm")
        self._ended = threading.Event()
        self.seen: list[tuple[float, int]] = []  # seconds since 1970, bytes
        self._thread = threading.Thread(target=self._look)
        self._thread.start()

    def now(self) -> int:
        return int(self._path.read_text().split()[1]) * 4096

    def _look(self) -> None:
        while not self._ended.wait(EVERY):
            self.seen.append((time.time(), self.now()))

    def stop(self) -> None:
        self._ended.set()
        self._thread.join()

    def median(self, begin: float, end: float) -> float:
        return statistics.median(size for at, size in self.seen if begin <= at < end)


class Overload(NamedTuple):
    """What was measured: rates in requests per second, latencies in seconds and in order, memory in bytes."""

    capacity: float
    offered: float
    goodput: float
    accepted: list[float]
    refused: list[float]  # by clients that read while they send
    patient: list[float]  # by those that send everything first
    patient_after: list[float]  # the same, from their last byte
    others: Counter[str]  # what was neither 200 nor 503
    late: list[float]  # by how much the generator was late
    idle: int
    second: float  # median of the memory in the second third
    third: float
    most: int

    def slowest(self) -> float:
        """
        How long an accepted request takes at most, in seconds, by the queue's limit: the batch that runs, and the queue in
        batches, of which the last one is its own, at the least goodput that is good enough.
        """
        return (BATCHES + 1) * BATCH / (GOODPUT * self.capacity)

    def memory(self) -> float:
        """
        What the server may have: what it had before the load; the bodies that wait, and those of two batches, twice, as
        garbage may be as much as what lives; and some room.
        """
        return self.idle + 2 * BODIES * BYTES + ROOM


def measure(server: Server, generator: Path, seconds: float) -> Overload:
    server.serve("overload", BATCH, DELAY)
    pid = server.pid()
    memory = Memory(pid)
    try:
        idle = memory.now()
        words = ["-bytes", str(BYTES), "-clients", f"{CLIENTS}:{SETTLE + CAPACITY_SECONDS}s"]
        requests, errors = Generator(generator, server, "overload", *words).finish()
        if errors or any(r.status != 200 for r in requests):
            raise SystemExit(f"{CLIENTS} clients: not all were answered; {errors}")
        begin = min(r.begun for r in requests) + SETTLE
        capacity = rate(requests, begin, begin + CAPACITY_SECONDS)
        words = ["-bytes", str(BYTES), "-rate", f"{TIMES * capacity:.3f}", "-time", f"{seconds:g}s", "-patient", "2"]
        begin = time.time()
        requests, errors = Generator(generator, server, "overload", *words).finish()
    finally:
        memory.stop()
    server.end("overload")
    begin, end = begin + SETTLE, begin + seconds
    counted = [r for r in requests if begin <= r.due < end]
    refused = [r for r in counted if r.status == 503]
    others = Counter(str(r.status) if r.status else f"no answer ({r.kind})" for r in counted if r.status not in (200, 503))
    for error in errors:
        print(f"  the generator: {error}")
    patient = [r for r in refused if r.kind == "patient"]
    span = (end - begin) / 3
    return Overload(
        capacity, len(counted) / (end - begin), rate(requests, begin, end),
        sorted(r.took for r in counted if r.status == 200),
        sorted(r.took for r in refused if r.kind == "attentive"),
        sorted(r.took for r in patient),
        sorted(r.answered - r.sent for r in patient),
        others,
        sorted(r.begun - r.due for r in counted if r.begun > 0),
        idle, memory.median(begin + span, end - span), memory.median(end - span, end), max(size for _, size in memory.seen),
    )  # fmt: skip


def rate(requests: list[Request], begin: float, end: float) -> float:
    """Good answers per second."""
    return sum(r.status == 200 and begin <= r.answered < end for r in requests) / (end - begin)


def report(measured: list[tuple[str, Overload]], seconds: float) -> list[str]:
    """Prints what was measured of the servers, the first of which is ours, and gives the bounds that it missed."""
    print(
        f"## Overload\n\n{TIMES} times the capacity for {seconds:g} s, at random times, with bodies of {BYTES} bytes. A handler "
        f"of {FIXED} ms + {EACH} ms for each request, one worker, batch {BATCH}, delay {DELAY} ms. All limits as they are by "
        f"default: {QUEUE} requests may wait.\n",
        flush=True,
    )
    found = [o for _, o in measured]
    mine = found[0]
    slowest, memory = mine.slowest() * 1000, mine.memory()
    missed = {
        "goodput": mine.goodput < GOODPUT * mine.capacity,
        "p99 of what is accepted": percentile(mine.accepted, 99) * 1000 > slowest,
        "p99 of refusals": not mine.refused or percentile(mine.refused, 99) * 1000 >= REFUSED_MS,
        "p99 of refusals, everything sent first": not mine.patient or percentile(mine.patient, 99) * 1000 >= REFUSED_MS,
        "neither 200 nor 503": bool(mine.others),
        "memory is flat": mine.third > FLAT * mine.second,
        "memory": mine.most > memory,
    }

    def row(name: str, bound: str, text: Callable[[Overload], str]) -> list[str]:
        return [name, bound, *map(text, found)]

    refused = f"{REFUSED_MS:.0f} ms"
    waits = f"{slowest:.0f} ms: a batch that runs, and {BATCHES} of the queue, at {GOODPUT:.0%} of the capacity"
    holds = f"{mb(memory)}: what it had before, {BODIES} bodies twice, {mb(ROOM)}"
    rows = [
        row("capacity", "", lambda o: f"{o.capacity:.1f}/s"),
        row("offered", "", lambda o: f"{o.offered:.1f}/s"),
        row("goodput", f"{GOODPUT:.0%} of the capacity", lambda o: f"{o.goodput:.1f}/s, {o.goodput / o.capacity:.1%}"),
        row("accepted: p50, p99", waits, lambda o: two(o.accepted)),
        row("refused: p50, p99, from the begin, with a new connection", refused, lambda o: two(o.refused)),
        row("the same, of clients that send everything before they read", refused, lambda o: two(o.patient)),
        row("the same, from their last byte on", "", lambda o: two(o.patient_after)),
        row("neither 200 nor 503", "none", lambda o: ", ".join(f"{what}: {n}" for what, n in o.others.items()) or "none"),
        row("resident memory before", "", lambda o: mb(o.idle)),
        row("its median in the second and in the last third", f"{FLAT - 1:.0%} more", lambda o: f"{mb(o.second)}, {mb(o.third)}"),
        row("its maximum", holds, lambda o: mb(o.most)),
        row("p99 of how late the generator was", "", lambda o: f"{percentile(o.late, 99) * 1000:.1f} ms"),
    ]
    table(["", "bound", *(name for name, _ in measured)], rows)
    return [f"overload: {name}" for name, bad in missed.items() if bad]


def two(latencies: list[float]) -> str:
    return f"{percentile(latencies, 50) * 1000:.2f}, {percentile(latencies, 99) * 1000:.2f} ms" if latencies else "none"


def mb(size: float) -> str:
    return f"{size / 1e6:.0f} MB"
