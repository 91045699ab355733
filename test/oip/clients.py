#!/usr/bin/env python3
"""Run the clients of the Open Inference Protocol against one server, and print for each call whether it went well.

usage: clients.py --scripts FOLDER --http HOST:PORT --grpc HOST:PORT [--torchserve]
                  [--perf "COMMAND"] [--bin FOLDER] [--proto FILE]

--scripts     folder with tritonclient_http.py, tritonclient_grpc.py, tritonclient_http_aio.py and kserve_client.py
--torchserve  the server speaks TorchServe's API, too
--perf        how perf_analyzer is started; without it is not run
--bin         folder with grpcurl and grpc-health-probe; without it they are not run
--proto       the protocol's .proto file, for servers without reflection

Prints one line for each call: its name, a tab, OK, FAIL or -, a tab, what was seen. Exit status 0 if the clients could be
run, whatever they say.
"""

from __future__ import annotations

import argparse
import json
import pathlib
import re
import shlex
import subprocess
import sys
import tempfile

LIMIT = 180  # seconds for one client
SHOWN = 160  # characters of what was seen
KSERVE = [
    "is_server_live",
    "is_server_ready",
    "model_ready",
    "infer binary=False",
    "infer binary=True",
    "grpc live",
    "grpc ready",
    "grpc infer",
]


def run(command: list[str], stdin: str = "") -> tuple[int, str]:
    """Run a command; its exit status, 124 if it took too long, and what it wrote."""
    try:
        done = subprocess.run(command, input=stdin, capture_output=True, text=True, timeout=LIMIT, check=False)
    except subprocess.TimeoutExpired:
        return 124, f"it did not end within {LIMIT} seconds"
    return done.returncode, done.stdout + done.stderr


def show(name: str, result: str, seen: str = "") -> None:
    """Print one line."""
    print(name, result, " ".join(seen.split())[:SHOWN], sep="\t", flush=True)


def calls(client: str, script: pathlib.Path, address: str) -> None:
    """Run a script that prints OK or FAIL for each call. The names of the calls are in its source, in their order."""
    names = re.findall(r"\bt\('([^']+)'", script.read_text())
    _, text = run([sys.executable, str(script), address])
    lines = [line for line in text.splitlines() if re.match(r"(OK|FAIL) ", line)]
    for i, name in enumerate(names):
        if i >= len(lines) or not lines[i][5:].startswith(name):
            show(f"{client} {name}", "FAIL", "the script ended before: " + text[-300:])
            lines = lines[:i]
            continue
        show(f"{client} {name}", lines[i][:4].strip(), lines[i][5 + len(name) :])


def kserve(script: pathlib.Path, http: str, grpc: str) -> None:
    """Run KServe's client."""
    _, text = run([sys.executable, str(script), http, grpc])
    lines = text.splitlines()
    for name in KSERVE:
        line = next((line for line in lines if line.startswith(name + " ") and " FAIL" not in line), "")
        show(f"kserve {name}", "OK" if line else "FAIL", line[len(name) :] or text[-300:])


def perf(options: argparse.Namespace) -> None:
    """Run perf_analyzer over every protocol that it has for us."""
    kinds = {
        "http": ["-m", "addsub", "-i", "http", "-u", options.http],
        "grpc": ["-m", "addsub", "-i", "grpc", "-u", options.grpc],
        "grpc streaming": ["-m", "addsub", "-i", "grpc", "-u", options.grpc, "--streaming"],
        "http batch 4": ["-m", "addsub", "-i", "http", "-u", options.http, "-b", "4"],
    }
    with tempfile.TemporaryDirectory() as folder:
        body, data = pathlib.Path(folder, "body.json"), pathlib.Path(folder, "data.json")
        body.write_text(json.dumps({"INPUT0": [[0, 1, 2, 3]], "INPUT1": [[1, 1, 1, 1]]}))
        data.write_text(json.dumps({"data": [{"TORCHSERVE_INPUT": [str(body)]}]}))
        kinds["torchserve"] = [
            "-m",
            "addsub",
            "--service-kind",
            "torchserve",
            "-i",
            "http",
            "-u",
            options.http,
            "-b",
            "1",
            "--input-data",
            str(data),
        ]
        for kind, arguments in kinds.items():
            if options.perf is None or (kind == "torchserve" and not options.torchserve):
                show(f"perf_analyzer {kind}", "-")
                continue
            status, text = run([*shlex.split(options.perf), *arguments, "--concurrency-range", "4", "--request-count", "500"])
            found = re.search(r"throughput: [^,\n]*", text)
            show(
                f"perf_analyzer {kind}",
                "OK" if status == 0 and found else "FAIL",
                found[0] if found else f"exit {status}: {text[-300:]}",
            )


def tools(options: argparse.Namespace) -> None:
    """Run grpcurl and grpc-health-probe."""
    service = "inference.GRPCInferenceService"
    if options.bin is None:
        for name in ("grpc-health-probe", "grpcurl list, by reflection", "grpcurl ModelReady", "grpcurl ModelInfer"):
            show(name, "-")
        return
    status, text = run([f"{options.bin}/grpc-health-probe", "-addr", options.grpc])
    show("grpc-health-probe", "OK" if status == 0 and "SERVING" in text else "FAIL", text)
    curl = [f"{options.bin}/grpcurl", "-plaintext"]
    status, text = run([*curl, options.grpc, "list"])
    show("grpcurl list, by reflection", "OK" if status == 0 and service in text else "FAIL", text)
    proto = pathlib.Path(options.proto)
    described = [*curl, "-import-path", str(proto.parent), "-proto", proto.name]
    status, text = run([*described, "-d", '{"name": "addsub"}', options.grpc, f"{service}/ModelReady"])
    show("grpcurl ModelReady", "OK" if status == 0 and '"ready": true' in text else "FAIL", text)
    inputs = [
        {"name": n, "datatype": "FP32", "shape": [1, 4], "contents": {"fp32_contents": [0, 1, 2, 3]}}
        for n in ("INPUT0", "INPUT1")
    ]
    status, text = run(
        [*described, "-d", json.dumps({"model_name": "addsub", "inputs": inputs}), options.grpc, f"{service}/ModelInfer"]
    )
    show("grpcurl ModelInfer", "OK" if status == 0 and "OUTPUT1" in text else "FAIL", text)


def main() -> None:
    """Run them all."""
    parser = argparse.ArgumentParser(usage=__doc__)
    parser.add_argument("--scripts", type=pathlib.Path, required=True)
    parser.add_argument("--http", required=True)
    parser.add_argument("--grpc", required=True)
    parser.add_argument("--torchserve", action="store_true")
    parser.add_argument("--perf")
    parser.add_argument("--bin")
    parser.add_argument("--proto", default="proto/openinference/v2/openinference.proto")
    options = parser.parse_args()
    calls("http", options.scripts / "tritonclient_http.py", options.http)
    calls("grpc", options.scripts / "tritonclient_grpc.py", options.grpc)
    _, text = run([sys.executable, str(options.scripts / "tritonclient_http_aio.py"), options.http])
    show("http.aio infer", "OK" if "aio ok" in text else "FAIL", text)
    kserve(options.scripts / "kserve_client.py", options.http, options.grpc)
    tools(options)
    perf(options)


if __name__ == "__main__":
    main()
