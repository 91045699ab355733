"""`flambeau run` from its job on: the real process, with models in folders."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
import time
from pathlib import Path
from typing import Any, Dict, List, NamedTuple

import pytest

SRC = Path(__file__).parents[2] / "src"
MAIN = SRC / "flambeau" / "worker" / "__main__.py"


class Ran(NamedTuple):
    """How a run ended."""

    status: int
    out: bytes
    err: str


def run(folder: Path, code: str, body: str = "hello", config: str = "", **fields: Any) -> Ran:
    """Run one request through a model whose handler has this code."""
    model = folder / "model"
    (model / "MAR-INF").mkdir(parents=True)
    (model / "h.py").write_text(textwrap.dedent(code))
    manifest: Dict[str, Any] = {"runtime": "python", "model": {"modelName": "m", "handler": "h.py"}}
    if config:
        (model / "config.yaml").write_text(config)
        manifest["model"]["configFile"] = "config.yaml"
    (model / "MAR-INF" / "MANIFEST.json").write_text(json.dumps(manifest))
    load = {"model_name": "m", "model_version": "1.0", "model_dir": str(model), "handler": "h.py", "envelope": "", "gpu": None}
    load.update(fields.pop("load", {}))
    job = {
        "load": load,
        "headers": [["explain", "False"]],
        "parts": [{"name": "body", "content_type": "", "text": body}],
        "batch": 1,
        "repeat": 1,
        "debugger": False,
        "json": False,
        "head": False,
        "unpack": 0.001,
        "started": time.time(),
    }
    job.update(fields)
    (folder / "job.json").write_text(json.dumps(job))
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("TS_", "FLAMBEAU_", "PYTHON"))}
    ran = subprocess.run(
        ["sh", "-c", 'exec "$0" "$1" run 3<"$2"', sys.executable, str(MAIN), str(folder / "job.json")],
        cwd=str(model),
        env=clean,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        check=False,
        timeout=60,
    )
    return Ran(ran.returncode, ran.stdout, ran.stderr.decode("utf-8"))


def report(ran: Ran) -> Dict[str, Any]:
    parsed: Dict[str, Any] = json.loads(ran.out)
    return parsed


ECHO = """
    import logging, os, subprocess, sys
    class Echo:
        def initialize(self, context):
            print("printed")
            logging.info("logged")
            logging.debug("not logged")
            os.write(1, b"written\\n")
            subprocess.run([sys.executable, "-c", "print('by a child')"], check=True)
        def handle(self, data, context):
            return [bytes(row["body"]) for row in data]
"""


def test_only_the_answer_goes_to_stdout(tmp_path: Path) -> None:
    ran = run(tmp_path, ECHO)
    assert (ran.status, ran.out) == (0, b"hello")
    assert ran.err.startswith("printed\nlogged\nwritten\nby a child\n")
    assert "class Echo of module h" in ran.err


def test_what_a_handler_sees_of_the_process_is_as_in_a_worker(tmp_path: Path) -> None:
    code = """
    import os, sys, json
    def handle(data, context):
        if data is None:
            return None
        return [{
            "argv": sys.argv[1:], "stdin": sys.stdin.read(), "cwd": os.getcwd(), "path": sys.path[0],
            "fd 3": os.path.exists("/proc/self/fd/3") and os.readlink("/proc/self/fd/3"),
            "id": context.get_request_id(0), "length": context.get_request_header(0, "content-length"),
        }]
    """
    ran = run(tmp_path, code)
    seen = json.loads(ran.out)
    model = os.path.realpath(str(tmp_path / "model"))
    assert "job.json" not in str(seen.pop("fd 3"))
    assert seen == {"argv": [], "stdin": "", "cwd": model, "path": model, "id": "run-0-0", "length": "5"}


def test_several_requests_and_several_runs(tmp_path: Path) -> None:
    code = """
    calls = []
    def handle(data, context):
        if data is None:
            return None
        calls.append(len(data))
        context.metrics.add_counter("Calls", 1)
        return ["%d of %r" % (i, calls) for i in range(len(data))]
    """
    ran = run(tmp_path, code, batch=2, repeat=3, json=True)
    said = report(ran)
    assert [answer["body"] for answer in said["answers"]] == ["0 of [2]", "1 of [2]"], "the answers are the first run's"
    assert len(said["rows"]) == 2
    assert len(said["runs_ms"]) == 3
    assert [line.split("|")[0] for line in said["metrics"]] == ["Calls.Count:1"]


STEPS = """
    import asyncio, time
    class Stepped:
        def initialize(self, context):
            time.sleep(0.02)
        def preprocess(self, data):
            time.sleep(0.01)
            return data
        def inference(self, data):
            return [self.postprocess(row) for row in data]
        def postprocess(self, row):
            time.sleep(0.03)
            return {"a": 1}
        def handle(self, data, context):
            return self.inference(self.preprocess(data))
"""


def test_the_steps_have_times(tmp_path: Path) -> None:
    said = report(run(tmp_path, STEPS, json=True, batch=2))
    times = said["runs_ms"][0]
    assert times["preprocess"] >= 10
    assert times["postprocess"] >= 60, "both calls count"
    assert times["handle"] >= times["inference"] + times["preprocess"] >= 70
    assert said["times_ms"]["initialize"] >= 20
    assert said["times_ms"]["unpack"] == 1
    assert {"start", "import"} < set(said["times_ms"])
    assert {"input", "encode"} < set(times)


def test_the_debugger_meets_no_wrappers(tmp_path: Path) -> None:
    code = """
    class H:
        def initialize(self, context): pass
        def preprocess(self, data): return data
        def handle(self, data, context): return [repr("preprocess" in vars(self))]
    """
    assert run(tmp_path, code, debugger=True).out == b"False"


def test_coroutines_are_timed_to_their_end(tmp_path: Path) -> None:
    code = """
    import asyncio
    class H:
        def initialize(self, context): pass
        async def inference(self, data):
            await asyncio.sleep(0.03)
            return data
        async def handle(self, data, context):
            await self.inference(data)
            await asyncio.sleep(0.02)
            return ["done"]
    """
    ran = run(tmp_path, code, config="asyncCommunication: true\n", json=True)
    said = report(ran)
    assert said["answers"][0]["body"] == "done"
    assert said["runs_ms"][0]["inference"] >= 29  # asyncio may wake a little early
    assert said["runs_ms"][0]["handle"] >= 48
    assert "is no coroutine function" not in ran.err


def test_pieces_come_before_the_end(tmp_path: Path) -> None:
    code = """
    from ts.handler_utils.utils import send_intermediate_predict_response as send
    def handle(data, context):
        if data is None:
            return None
        send(["a;"] * len(data), context.request_ids, "ok", 200, context)
        send(["b;"] * len(data), context.request_ids, "ok", 200, context)
        return ["c"] * len(data)
    """
    (tmp_path / "one").mkdir()
    (tmp_path / "two").mkdir()
    assert run(tmp_path / "one", code).out == b"a;b;c"
    said = report(run(tmp_path / "two", code, json=True, batch=2))
    assert [[piece["body"] for piece in answer["pieces"]] for answer in said["answers"]] == [["a;", "b;"]] * 2


FAILING = """
    from ts.torch_handler.base_handler import BaseHandler
    class H(BaseHandler):
        def initialize(self, context): pass
        def preprocess(self, data): return self.open(data)
        def open(self, data):
            try:
                {}["inner"]
            except KeyError as err:
                raise %s from err
"""


def frames(text: str) -> List[str]:
    return [line.strip().rsplit("/", 1)[1].split('"')[0] for line in text.splitlines() if line.strip().startswith('File "/')]


def test_a_failure_is_told_in_the_servers_words(tmp_path: Path) -> None:
    ran = run(tmp_path, FAILING % 'ValueError("outer")')
    assert (ran.status, ran.out) == (1, b"")
    assert frames(ran.err) == ["h.py", "base_handler.py", "h.py", "h.py"], "no frame is the runner's"
    assert "ValueError: outer" in ran.err
    assert "flambeau run: the handler failed at h.py:10: a client would get 503, Prediction failed\n" in ran.err


def test_a_prediction_exception_has_its_own_status(tmp_path: Path) -> None:
    code = FAILING % '__import__("ts.utils.util").utils.util.PredictionException("no such class", 404)'
    ran = run(tmp_path, code, head=True)
    assert (ran.status, ran.out) == (1, b"HTTP 404 Not Found\n\n")
    assert "a client would get 404, no such class" in ran.err


def test_a_wrong_result_is_a_failure(tmp_path: Path) -> None:
    ran = run(tmp_path, "def handle(data, context):\n    return None if data is None else 'text'\n")
    assert ran.status == 1
    assert "the handler returned a str; it must return a list" in ran.err
    assert "a client would get 503, Invalid model predict output" in ran.err


def test_a_model_that_does_not_load(tmp_path: Path) -> None:
    (tmp_path / "one").mkdir()
    (tmp_path / "two").mkdir()
    ran = run(tmp_path / "one", "import nothing_of_that_name\n")
    assert (ran.status, ran.out) == (1, b"")
    assert frames(ran.err) == ["h.py"]
    assert "flambeau run: the model could not be loaded: ModuleNotFoundError: No module named 'nothing_of_that_name'" in ran.err
    said = report(
        run(tmp_path / "two", "class H:\n    def initialize(self, c): 1/0\n    def handle(self, d, c): pass\n", json=True)
    )
    assert "ZeroDivisionError" in said["load_failure"]["traceback"]
    assert "initialize" in said["times_ms"]


def test_sys_exit(tmp_path: Path) -> None:
    ran = run(tmp_path, "import sys\ndef handle(data, context):\n    if data: sys.exit('enough')\n")
    assert ran.status == 1
    assert "the handler ended the process with sys.exit('enough')" in ran.err


def test_threads_that_never_end_do_not_hold_it(tmp_path: Path) -> None:
    code = """
    import threading
    def handle(data, context):
        if data is None:
            threading.Thread(target=threading.Event().wait).start()
            return None
        return ["done"]
    """
    assert run(tmp_path, code).out == b"done"


def test_an_input_that_cannot_be_read(tmp_path: Path) -> None:
    ran = run(tmp_path, ECHO, parts=[{"name": "body", "content_type": "", "file": "/nowhere/at/all"}])
    assert ran.status == 2
    assert ran.err == "flambeau run: /nowhere/at/all cannot be read: No such file or directory\n"


def test_by_hand() -> None:
    ran = subprocess.run([sys.executable, str(MAIN), "run"], stderr=subprocess.PIPE, stdin=subprocess.DEVNULL, check=False)
    assert (ran.returncode, ran.stderr) == (2, b"This is a part of the command `flambeau run`, which starts it itself.\n")


def test_bodies_that_are_no_text_are_base64_in_json(tmp_path: Path) -> None:
    said = report(run(tmp_path, "def handle(data, context):\n    return data and [b'\\xff\\x00']\n", json=True))
    assert said["answers"] == [{"status": 200, "headers": [], "body_base64": "/wA="}]


@pytest.mark.parametrize(
    ("value", "said"),
    [
        (bytearray(b"ab"), {"type": "bytearray", "size": 2, "unit": "bytes", "preview": "b'ab'"}),
        (b"x" * 1000, {"type": "bytes", "size": 1000, "unit": "bytes", "preview": "b'" + "x" * 55 + "..."}),
        ("é" * 61, {"type": "str", "size": 61, "unit": "characters", "preview": "'" + "é" * 56 + "..."}),
        ({"a": [1, 2]}, {"type": "dict", "size": 1, "unit": "keys", "preview": "{'a': [1, 2]}"}),
        (list(range(100)), {"type": "list", "size": 100, "unit": "elements", "preview": "[0, 1, 2, 3, 4, 5, 6, 7, ...]"}),
        (None, {"type": "NoneType", "preview": "None"}),
    ],
)
def test_a_value_in_short(value: object, said: Dict[str, Any]) -> None:
    from flambeau.runner.watch import about

    assert about(value) == said


@pytest.mark.parametrize(
    ("value", "said"),
    [
        ({"a": 1}, "dict, 1 key, {'a': 1}"),
        ({}, "dict, 0 keys, {}"),
        ({"a": 1, "b": 2}, "dict, 2 keys, {'a': 1, 'b': 2}"),
        ([7], "list, 1 element, [7]"),
        ((), "tuple, 0 elements, ()"),
        (b"x", "bytes, 1 byte, b'x'"),
        ("x", "str, 1 character, 'x'"),
        ("", "str, 0 characters, ''"),
    ],
)
def test_one_of_something_is_no_plural(value: object, said: str) -> None:
    from flambeau.runner.report import Report
    from flambeau.runner.watch import about
    from flambeau.worker.frames import Answer

    shown = Report({"model_name": "m", "model_version": "1.0", "model_dir": "/m", "handler": "h"})
    shown.rows = [{"data": about(value)}]
    shown.results = [Answer(body=b"x"), Answer(body=b"xy")]
    lines = [line.split(None, 2)[2] for line in shown.text().splitlines() if line.startswith(("row ", "answer "))]
    assert lines == ["data: " + said, "HTTP 200 OK, 1 byte", "HTTP 200 OK, 2 bytes"]
