"""Compares servers of ONNX models in one run: Flambeau, LitServe, Mosec, FastAPI, Triton, PyTriton; and onnxruntime in a loop.

    python bench.py HARNESS WORK [options]

HARNESS is the folder of the project's benchmark of model servers, whose harness is used: all servers are up, all but one are
frozen, and they take turns. WORK is the folder that tools/bench-onnx.sh has prepared. Each server has one worker with as many
threads as the loop. Figures mean something beside the others of the same run only. With --check the status is 1 unless
Flambeau is ahead of each peer and has 90 % of the loop's rate.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Dict, List, Tuple

HERE = Path(__file__).resolve().parent
LOOP, OURS, WANTED = "loop", "flambeau", 0.9
# Name, model, largest batch, concurrencies. Batches gain little with these models on a CPU; a server that makes them may show it.
SETTINGS = (
    ("magika", "magika", 1, (1, 8, 64)),
    ("resnet18", "resnet18", 1, (1, 8, 64)),
    ("resnet18 in batches", "resnet18", 8, (8, 64)),
)


def arguments() -> argparse.Namespace:
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("harness")
    p.add_argument("work")
    p.add_argument("--peers", default="mosec,litserve,fastapi,triton,pytriton")
    p.add_argument("--models", default=",".join(s[0] for s in SETTINGS))
    p.add_argument("--concurrency", default="1,8,64")
    p.add_argument("--seconds", type=float, default=4)
    p.add_argument("--rounds", type=int, default=3)
    p.add_argument("--threads", type=int, default=1)
    p.add_argument("--json")
    p.add_argument("--check", action="store_true")
    return p.parse_args()


@dataclass(frozen=True)
class Workload:
    """What the harness wants to know of a model."""

    name: str
    logic: str
    batch: int

    @property
    def body(self) -> str:
        return f"{self.logic}.bin"

    def expected(self, models: str) -> str:
        return str(json.loads(Path(models, "expected.json").read_text())[self.logic])


class Loop:
    """onnxruntime in a tight loop, with the methods of the harness's servers."""

    name, ok, pids = LOOP, True, ()

    def __init__(self, work: Any, workload: Workload, threads: int) -> None:
        self.workload = workload
        env = dict(os.environ, BENCH_W=workload.logic, BENCH_MODELS=work.models, BENCH_THREADS=str(threads), OMP_NUM_THREADS="1")
        self.process = subprocess.Popen(
            [work.python("pyservers"), str(HERE / "servers/loop.py")],
            env=env,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def measure(self, conc: int, secs: float) -> Dict[str, Any]:
        """The best of single rows and of whole batches, where that many requests can be there at once."""
        rows = []
        for size in {1, min(self.workload.batch, conc)}:
            print(size, secs, file=self.process.stdin, flush=True)
            rows.append(json.loads(self.process.stdout.readline()))
        return dict(max(rows, key=lambda r: r["rps"]), errors=0, cpu_per_1000=0.0)

    def stop(self) -> None:
        self.process.stdin.close()
        self.process.wait(10)


def flambeau(launch: Any, threads: int) -> Any:
    """Our server: a store with the model and how it is run, and the settings that every TorchServe user writes."""

    def make(ctx: Any) -> Any:
        folder = Path(ctx.rundir, "store/m")
        folder.mkdir(parents=True)
        (folder / "model.onnx").write_bytes(Path(ctx.work.models, f"{ctx.workload.logic}.onnx").read_bytes())
        delay = 5 if ctx.workload.batch > 1 else 0
        (folder / "model-config.yaml").write_text(
            f"minWorkers: {ctx.workers}\nmaxWorkers: {ctx.workers}\nbatchSize: {ctx.workload.batch}\nmaxBatchDelay: {delay}\n"
            f"onnx: {{intraOpThreads: {threads}}}\n"
        )
        ports = [f"http://127.0.0.1:{ctx.port + k}" for k in range(3)]
        config = Path(ctx.rundir, "config.properties")
        config.write_text(
            f"inference_address={ports[0]}\nmanagement_address={ports[1]}\nmetrics_address={ports[2]}\n"
            f"grpc_inference_port={ctx.port + 3}\ngrpc_management_port={ctx.port + 4}\n"
            "disable_token_authorization=true\njob_queue_size=1000\n"
        )
        library = next(Path(ctx.work.venv("pyservers")).glob("lib/python3*/site-packages/onnxruntime/capi"))
        env = {
            "FLAMBEAU_ONNXRUNTIME": str(library),
            "LOG_LOCATION": f"{ctx.rundir}/logs",
            "METRICS_LOCATION": f"{ctx.rundir}/logs",
            "TEMP": ctx.rundir,
        }
        command = [f"{ctx.work.bin}/flambeau", "serve", "--ts-config", str(config), "--model-store", f"{ctx.rundir}/store"]
        return launch(command, env)

    return make


def peers(harness: Any, threads: int) -> Dict[str, Any]:
    """The servers by name, in the harness's terms."""
    common = {"BENCH_THREADS": str(threads), "PYTHONDONTWRITEBYTECODE": "1"}
    servers = str(HERE / "servers")

    def script(venv: str, name: str) -> Any:
        return lambda ctx: harness.Launch([ctx.work.python(venv), f"{servers}/{name}"], dict(common))

    def mosec(ctx: Any) -> Any:
        words = ["--address", "127.0.0.1", "--port", str(ctx.port), "--timeout", "60000"]
        return harness.Launch([ctx.work.python("pyservers"), f"{servers}/s_mosec.py", *words], dict(common))

    def fastapi(ctx: Any) -> Any:
        words = ["-m", "uvicorn", "s_fastapi:app", "--app-dir", servers, "--host", "127.0.0.1", "--port", str(ctx.port)]
        words += ["--workers", str(ctx.workers), "--no-access-log", "--log-level", "warning"]
        return harness.Launch([ctx.work.python("pyservers"), *words], dict(common))

    form, raw = harness.FORM, harness.TRITON_RAW
    return {
        p.name: p
        for p in (
            harness.Peer(OURS, flambeau(harness.Launch, threads), "/predictions/m"),
            harness.Peer("litserve", script("pyservers", "s_litserve.py"), "/predict", suffix=".form", content_type=form),
            harness.Peer("mosec", mosec, "/inference"),
            harness.Peer("fastapi", fastapi, "/predict"),
            harness.Peer("triton", script("triton", "s_triton.py"), "/v2/models/m/infer", header=raw),
            harness.Peer("pytriton", script("triton", "s_pytriton.py"), "/v2/models/m/infer", header=raw),
        )
    }


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


Rows = Dict[Tuple[str, int], Dict[str, List[Dict[str, Any]]]]


def run_setting(
    args: argparse.Namespace, server: Any, work: Any, setting: Tuple[str, str, int, Tuple[int, ...]], rows: Rows
) -> None:
    """Starts all servers for a model, and measures them in turn."""
    title, logic, batch, concurrencies = setting
    workload, started = Workload(title.replace(" ", "-"), logic, batch), []
    loop = Loop(work, workload, args.threads)
    try:
        for i, name in enumerate([OURS, *args.peers.split(",")]):
            started.append(server.Server(name, work, workload, 1, 22000 + i * 20))
            if started[-1].wait(120, 2):
                started[-1].freeze()
        for conc in [c for c in concurrencies if str(c) in args.concurrency.split(",")]:
            cell = rows.setdefault((title, conc), {})
            for number in range(args.rounds):
                cell.setdefault(LOOP, []).append(loop.measure(conc, args.seconds / 2))
                for s in [s for s in started if s.ok]:
                    row = s.measure(conc, args.seconds, 0.7, 1)
                    cell.setdefault(s.name, []).append(row)
                    where = f"{title}, {conc} at once, round {number}, {s.name}"
                    figures = (
                        f"{row['rps']:.1f}/s, p50 {row['p50']:.2f}, p99 {row['p99']:.2f} ms, CPU s/1000 {row['cpu_per_1000']:.2f}"
                    )
                    say(f"{where}: {figures}, foreign CPU {row['foreign']:.0%}, errors {row['errors']} {row['error'][:60]}")
    finally:
        loop.stop()
        for s in started:
            s.stop()


def middle(rows: List[Dict[str, Any]], field: str) -> float:
    return statistics.median(r[field] for r in rows)


def ratio(ours: List[Dict[str, Any]], theirs: List[Dict[str, Any]], field: str) -> float:
    """The median over the rounds of ours by theirs."""
    return statistics.median(a[field] / b[field] if b[field] else float("inf") for a, b in zip(ours, theirs))


COLUMNS = ["server", "requests/s", "p50 ms", "p99 ms", "CPU s/1000", "requests/s of ours by its", "p99 of ours by its", "errors"]


def report(rows: Rows) -> bool:
    """Prints a table for each cell, and says whether all that is wanted holds."""
    holds = True
    for (title, conc), cell in rows.items():
        print(f"\n### {title}, {conc} at once\n\n| {' | '.join(COLUMNS)} |\n{'|--' * len(COLUMNS)}|")
        ours = cell.get(OURS, [])
        for name, runs in sorted(cell.items(), key=lambda c: -middle(c[1], "rps")):
            errors = sum(r["errors"] for r in runs)
            faster, later = (ratio(ours, runs, "rps"), ratio(ours, runs, "p99")) if ours else (0.0, float("inf"))
            figures = [f"{middle(runs, field):.2f}" for field in ("rps", "p50", "p99", "cpu_per_1000")]
            print("|", " | ".join([name, *figures, f"{faster:.2f}", f"{later:.2f}", str(errors)]), "|")
            if name == LOOP:
                good = faster >= WANTED
            elif name == OURS:
                good = errors == 0
            else:
                good = errors > 0 or (faster > 1 and later < 1)
            if not good:
                holds = False
                say(f"not reached, {title}, {conc} at once: {faster:.2f} of the rate and {later:.2f} of the p99 of {name}")
    return holds


def main() -> int:
    args = arguments()
    sys.dont_write_bytecode = True
    sys.path.insert(0, args.harness)
    from harness import peers as harness
    from harness import server, workdir

    work = workdir.WorkDir(args.work)
    for folder in (work.run, work.logs):
        os.makedirs(folder, exist_ok=True)
    harness.PEERS.clear()
    harness.PEERS.update(peers(harness, args.threads))
    rows: Rows = {}
    for setting in SETTINGS:
        if setting[0] in args.models.split(","):
            try:
                run_setting(args, server, work, setting, rows)
            except KeyboardInterrupt:
                say("interrupted: what was measured so far")
                break
    if args.json:
        Path(args.json).write_text(json.dumps([{"model": m, "concurrency": c, "rows": cell} for (m, c), cell in rows.items()]))
    holds = report(rows)
    return 1 if args.check and not holds else 0


if __name__ == "__main__":
    sys.exit(main())
