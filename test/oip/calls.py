#!/usr/bin/env python3
"""Make the calls of tritonclient that matter, and look at what comes back.

usage: calls.py HOST:PORT HOST:PORT        the server's REST and gRPC, with the models of repository.py

Each check is a function; the first thing that is not as it has to be ends its function. Prints a line for each; exit status
1 if any failed.
"""

from __future__ import annotations

import asyncio
import base64
import json
import queue
import sys
import urllib.request
from collections.abc import Callable
from typing import Any

import numpy as np
import tritonclient.grpc
import tritonclient.http
import tritonclient.http.aio
import tritonclient.utils.shared_memory as shm
from repository import addsub
from tritonclient.utils import InferenceServerException

A = np.arange(4, dtype=np.float32).reshape(1, 4)
B = np.ones((1, 4), np.float32)
CONFIG = {
    "max_batch_size": 4,
    "dynamic_batching": {"max_queue_delay_microseconds": 1000},
    "instance_group": [{"kind": "KIND_CPU", "count": 2}],
}


def inputs(client: Any, binary: bool = True) -> list[Any]:
    """The model's inputs."""
    given = []
    for name, value in (("INPUT0", A), ("INPUT1", B)):
        tensor = client.InferInput(name, [1, 4], "FP32")
        if client is tritonclient.grpc:
            tensor.set_data_from_numpy(value)
        else:
            tensor.set_data_from_numpy(value, binary_data=binary)
        given.append(tensor)
    return given


def fails(call: Callable[[], Any], text: str) -> None:
    """Require that a call is refused with that text."""
    try:
        call()
    except InferenceServerException as error:
        assert text in str(error), error
        return
    raise AssertionError(f"it is not refused; wanted: {text}")


class Checks:
    """The checks. Their names say what they look at."""

    def __init__(self, http: str, grpc: str) -> None:
        self.addresses = {"http": http, "grpc": grpc}
        self.clients: dict[str, Any] = {
            "http": tritonclient.http.InferenceServerClient(http),
            "grpc": tritonclient.grpc.InferenceServerClient(grpc),
        }
        self.modules: dict[str, Any] = {"http": tritonclient.http, "grpc": tritonclient.grpc}

    def infer(self) -> None:
        """Sum and difference, however they are asked for."""
        for kind, client in self.clients.items():
            module = self.modules[kind]
            answer = client.infer(
                "addsub", inputs(module), request_id="7", headers={"x-tenant": "a"}, priority=2, timeout=10_000_000
            )
            assert (answer.as_numpy("OUTPUT0") == A + B).all()
            assert (answer.as_numpy("OUTPUT1") == A - B).all()
            one = client.infer("addsub", inputs(module), model_version="1", outputs=[module.InferRequestedOutput("OUTPUT1")])
            assert (one.as_numpy("OUTPUT1") == A - B).all() and one.as_numpy("OUTPUT0") is None
            fails(lambda client=client, module=module: client.infer("addsub", inputs(module)[:1]), "expected 2 inputs but got 1")
            fails(lambda client=client, module=module: client.infer("nope", inputs(module)), "nope")
        packed = self.clients["http"].infer(
            "addsub", inputs(tritonclient.http), request_compression_algorithm="gzip", response_compression_algorithm="deflate"
        )
        assert (packed.as_numpy("OUTPUT0") == A + B).all()
        packed = self.clients["grpc"].infer("addsub", inputs(tritonclient.grpc), compression_algorithm="gzip")
        assert (packed.as_numpy("OUTPUT0") == A + B).all()

    def classification(self) -> None:
        """The best classes in an output's place."""
        for kind, client in self.clients.items():
            answer = client.infer(
                "addsub", inputs(self.modules[kind]), outputs=[self.modules[kind].InferRequestedOutput("OUTPUT0", class_count=2)]
            )
            assert answer.as_numpy("OUTPUT0").tolist() == [[b"4.000000:3", b"3.000000:2"]], answer.as_numpy("OUTPUT0")

    def stream(self) -> None:
        """Answers in a stream, and a failure that does not end it."""
        client, answers = tritonclient.grpc.InferenceServerClient(self.addresses["grpc"]), queue.Queue()
        client.start_stream(callback=lambda result, error: answers.put((result, error)))
        client.async_stream_infer("addsub", inputs(tritonclient.grpc), request_id="1", sequence_id=5, sequence_start=True)
        result, error = answers.get(timeout=30)
        assert error is None and (result.as_numpy("OUTPUT0") == A + B).all(), error
        client.async_stream_infer("nope", inputs(tritonclient.grpc), request_id="2")
        _, error = answers.get(timeout=30)
        assert "nope" in str(error)
        text = tritonclient.grpc.InferInput("text_input", [1], "BYTES")
        text.set_data_from_numpy(np.array([b"one two three"], dtype=np.object_))
        client.async_stream_infer("repeat", [text], request_id="3", enable_empty_final_response=True)
        words = []
        while True:
            result, error = answers.get(timeout=30)
            assert error is None, error
            response = result.get_response()
            if response.outputs:
                words.append(result.as_numpy(response.outputs[0].name)[0])
            if response.parameters["triton_final_response"].bool_param:
                break
        assert words == [b"one", b"two", b"three"], words
        client.stop_stream()

    def asynchronous(self) -> None:
        """The client for asyncio."""

        async def ask() -> Any:
            async with tritonclient.http.aio.InferenceServerClient(self.addresses["http"]) as client:
                return await client.infer("addsub", inputs(tritonclient.http))

        assert (asyncio.run(ask()).as_numpy("OUTPUT0") == A + B).all()

    def shared_memory(self) -> None:
        """Inputs read from system shared memory, outputs written to it, and what must not work."""
        size = A.nbytes
        for kind, client in self.clients.items():
            module = self.modules[kind]
            key = f"/flambeau_{kind}_in"
            region_in = shm.create_shared_memory_region("in", key, 2 * size)
            region_out = shm.create_shared_memory_region("out", f"/flambeau_{kind}_out", 2 * size)
            try:
                shm.set_shared_memory_region(region_in, [A, B])
                client.register_system_shared_memory("in", key, 2 * size)
                client.register_system_shared_memory("out", f"/flambeau_{kind}_out", 2 * size)
                given = inputs(module)
                given[0].set_shared_memory("in", size)
                given[1].set_shared_memory("in", size, offset=size)
                outputs = [module.InferRequestedOutput("OUTPUT0"), module.InferRequestedOutput("OUTPUT1")]
                outputs[0].set_shared_memory("out", size)
                outputs[1].set_shared_memory("out", size, offset=size)
                client.infer("addsub", given, outputs=outputs)
                assert (shm.get_contents_as_numpy(region_out, np.float32, [2, 4]) == np.concatenate([A + B, A - B])).all()
                for region, length, offset, text in (
                    ("in", size, 2 * size, "end behind the shared memory region"),
                    ("in", size // 2, 0, "8 in shared memory"),
                    ("other", size, 0, "Unable to find shared memory region"),
                ):
                    wrong = inputs(module)
                    wrong[0].set_shared_memory(region, length, offset)
                    fails(lambda client=client, wrong=wrong: client.infer("addsub", wrong), text)
                narrow = module.InferRequestedOutput("OUTPUT0")
                narrow.set_shared_memory("out", size // 2)
                fails(
                    lambda client=client, given=given, narrow=narrow: client.infer("addsub", given, outputs=[narrow]),
                    "at least 16 bytes",
                )
                fails(lambda client=client, key=key: client.register_system_shared_memory("in", key, size), "already in manager")
                fails(
                    lambda client=client, key=key: client.register_system_shared_memory("long", key, 1 << 20),
                    "end behind the object",
                )
                for bad in ("/../../etc/passwd", "../x", "/..", "/a/b", "passwd", "/"):
                    fails(
                        lambda client=client, bad=bad: client.register_system_shared_memory("bad", bad, 8), "failed to register"
                    )
                client.unregister_system_shared_memory("in")
                client.unregister_system_shared_memory()
                fails(lambda client=client, given=given: client.infer("addsub", given), "Unable to find shared memory region")
            finally:
                shm.destroy_shared_memory_region(region_in)
                shm.destroy_shared_memory_region(region_out)

    def overrides(self) -> None:
        """A model that is made of what a client sends, and one that runs with a client's configuration."""
        for kind, client in self.clients.items():
            name = f"sent-{kind}"
            client.load_model(name, config=json.dumps(CONFIG), files={"file:3/model.onnx": addsub()})
            assert client.is_model_ready(name, "3")
            assert (client.infer(name, inputs(self.modules[kind])).as_numpy("OUTPUT0") == A + B).all()
            fails(lambda client=client, name=name: client.load_model(name, files={"file:3/model.onnx": b"x"}, config="{}"), "")
            assert (client.infer(name, inputs(self.modules[kind])).as_numpy("OUTPUT0") == A + B).all(), (
                "a broken file must not take its place"
            )
            for path in (
                "file:1/../../../x",
                "file:/etc/passwd",
                "file:1/MAR-INF/MANIFEST.json",
                "file:1/model-config.yaml",
                "file:1/model.py",
            ):
                fails(lambda client=client, path=path: client.load_model("bad", config="{}", files={path: b"x"}), "")
            client.unload_model(name, unload_dependents=True)
            assert not client.is_model_ready(name)
            before = self.config("addsub")
            client.load_model("addsub", config=json.dumps(CONFIG))
            now = self.config("addsub")
            assert now["instance_group"][0]["count"] == 2, now
            assert (client.infer("addsub", inputs(self.modules[kind])).as_numpy("OUTPUT0") == A + B).all()
            fails(
                lambda client=client: client.load_model("addsub", config='{"response_cache": {"enable": true}}'),
                "cannot be set here",
            )
            client.load_model("addsub")
            assert self.config("addsub") == before, "loaded without a configuration it is as the store has it"

    def config(self, model: str) -> Any:
        """A model's configuration."""
        return self.clients["http"].get_model_config(model)

    def settings(self) -> None:
        """Log and trace settings: changes have an effect, and what has none is refused."""
        for kind, client in self.clients.items():
            shown = client.update_log_settings({"log_verbose_level": 1, "log_format": "ISO8601"})
            assert "ISO8601" in str(shown), shown
            client.update_log_settings({"log_verbose_level": 0, "log_format": "default"})
            fails(
                lambda client=client: client.update_log_settings({"log_file": "/tmp/x"}), "log file location can not be updated"
            )
            client.update_trace_settings("addsub", {"trace_level": ["TIMESTAMPS"], "trace_rate": "1", "trace_count": "1"})
            client.infer("addsub", inputs(self.modules[kind]))
            left = client.get_trace_settings("addsub")
            count = left["trace_count"] if kind == "http" else left.settings["trace_count"].value[0]
            assert count == "0", left
            client.update_trace_settings("addsub", {"trace_level": None, "trace_rate": None, "trace_count": None})
            fails(lambda client=client: client.update_trace_settings(settings={"trace_level": ["TENSORS"]}), "TENSORS")
            fails(
                lambda client=client: client.update_trace_settings(settings={"trace_file": "/etc/passwd"}), "trace file location"
            )

    def repository(self) -> None:
        """Index, unload and load."""
        client = self.clients["http"]
        client.unload_model("addsub")
        assert not client.is_model_ready("addsub")
        client.load_model("addsub")
        rows = {(m["name"], m["version"]): m["state"] for m in client.get_model_repository_index()}
        assert rows[("addsub", "1")] == rows[("addsub", "2")] == "READY", rows

    def generate(self) -> None:
        """Words of a Python handler, in one answer and one by one."""
        body = json.dumps({"text_input": "one two"}).encode()
        for path in ("generate", "generate_stream"):
            request = urllib.request.Request(
                f"http://{self.addresses['http']}/v2/models/repeat/{path}", body, {"Content-Type": "application/json"}
            )
            with urllib.request.urlopen(request, timeout=60) as answer:
                text = answer.read().decode()
            assert text.count("data: ") == (2 if path == "generate_stream" else 0), text
            assert "two" in text, text

    def raw_load(self) -> None:
        """A file in base64, as the specification has it."""
        body = json.dumps({"parameters": {"config": "{}", "file:1/model.onnx": base64.b64encode(addsub()).decode()}}).encode()
        address = f"http://{self.addresses['http']}/v2/repository/models/raw"
        with urllib.request.urlopen(urllib.request.Request(address + "/load", body), timeout=60) as answer:
            assert answer.status == 200
        assert self.clients["http"].is_model_ready("raw")
        self.clients["http"].unload_model("raw")


def main() -> int:
    """Run all checks."""
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    checks, failed = Checks(sys.argv[1], sys.argv[2]), 0
    for name in [n for n, member in vars(Checks).items() if callable(member) and not n.startswith("_") and n != "config"]:
        try:
            getattr(checks, name)()
        except Exception as error:  # each client has its own
            failed += 1
            at = error.__traceback__ and error.__traceback__.tb_next
            print(f"FAIL {name}: {type(error).__name__} {error} (line {at.tb_lineno if at else '?'})", flush=True)
        else:
            print(f"OK   {name}", flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
