"""The number of clients goes up, and down again: the workers follow."""

from __future__ import annotations

import time
from itertools import groupby
from pathlib import Path
from typing import Any, NamedTuple

from server import Generator, Request, Server, percentile, table

FIXED, EACH, BATCH, DELAY = 20, 2, 8, 20
MOST = 4  # workers
PHASES = ((1, 10), (64, 20), (1, 30))  # clients, and seconds
CALM, FOLLOWS = 5, 15  # seconds: autoscale_calm_time, and until all the workers have to be there
EVERY = 5  # seconds of a line
SETTINGS = f"minWorkers: 1\nmaxWorkers: {MOST}\nbatchSize: {BATCH}\nmaxBatchDelay: {DELAY}\n"


class Look(NamedTuple):
    """How many workers were ready at a time, in seconds since 1970."""

    at: float
    workers: int


def ready(server: Server) -> int:
    described: list[dict[str, Any]] = server.manage("GET", "/models/step")
    return sum(w["status"] == "READY" for w in described[0]["workers"])


def measure(server: Server, generator: Path) -> tuple[list[Request], list[Look], list[str]]:
    """Loads a server that has the model, and looks at its workers four times in a second."""
    load = Generator(generator, server, "step", "-clients", ",".join(f"{n}:{s}s" for n, s in PHASES))
    looks = []
    while load.process.poll() is None:
        looks.append(Look(time.time(), ready(server)))
        time.sleep(0.25)
    requests, errors = load.finish()
    return requests, looks, errors


def lines(requests: list[Request], looks: list[Look]) -> list[list[str]]:
    """The rows of the table: what was seen in each span."""
    start = min(r.begun for r in requests)
    rows, begin = [], 0
    for clients, length in PHASES:
        for at in range(begin, begin + length, EVERY):
            mine = [r for r in requests if start + at <= r.answered < start + at + EVERY]
            took = sorted(r.took for r in mine)
            workers = [look.workers for look in looks if start + at <= look.at < start + at + EVERY]
            rows.append(
                [
                    f"{at} to {at + EVERY} s",
                    str(clients),
                    ", ".join(str(n) for n, _ in groupby(workers)),
                    f"{len(mine) / EVERY:.0f}/s",
                    f"{percentile(took, 50) * 1000:.0f} ms",
                    f"{percentile(took, 99) * 1000:.0f} ms",
                ]
            )
        begin += length
    return rows


def step(server: Server, generator: Path) -> list[str]:
    """Prints what happens on the server, and gives the bounds that it missed."""
    print(
        f"## Load step\n\n{' → '.join(str(n) for n, _ in PHASES)} clients. A handler of {FIXED} ms + {EACH} ms for each request, "
        f"batch {BATCH}, 1 to {MOST} workers, `autoscale_calm_time={CALM}`.\n",
        flush=True,
    )
    server.manage("POST", "/models?url=step.mar&initial_workers=1&synchronous=true")
    requests, looks, errors = measure(server, generator)
    server.end("step")
    table(["time", "clients", "workers ready", "answers", "p50", "p99"], lines(requests, looks))
    failed = [r for r in requests if r.status != 200]
    up = min(r.begun for r in requests) + PHASES[0][1]
    there = next((look.at - up for look in looks if look.at >= up and look.workers == MOST), None)
    last = looks[-1].workers
    after = f"{there:.1f} s after the step" if there is not None else "never"
    print(
        f"{len(requests)} requests, {len(failed)} failed (bound: none); {MOST} workers {after} (bound: {FOLLOWS} s); "
        f"{last} at the end (bound: 1).\n",
        flush=True,
    )
    for error in errors:
        print(f"the generator: {error}")
    checks = [
        ("nothing fails", not failed),
        ("workers follow up", there is not None and there <= FOLLOWS),
        ("workers follow down", last == 1),
        ("one worker before the step", all(look.workers == 1 for look in looks if look.at < up)),
    ]
    return [f"load step: {name}" for name, good in checks if not good]
