"""The worker's loop, over a transport in memory: batches, failures, streams, the end."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
import threading
import time
from pathlib import Path
from typing import Any, List

import pytest
from workerkit import MemoryTransport, Request, Session, body, encode_batch, make_model

from flambeau.worker import library
from flambeau.worker.frames import FrameError

FAULTS = """
import asyncio, sys
from ts.utils.util import PredictionException
class Weird(Exception):
    def __str__(self): raise RuntimeError("no text")
class H:
    def initialize(self, ctx): pass
    def handle(self, data, ctx):
        cmd = data[0]["body"]
        if cmd == "raise": raise ValueError("secret detail")
        if cmd == "memory": raise MemoryError("oom")
        if cmd == "cuda": raise RuntimeError("CUDA out of memory")
        if cmd == "weird": raise Weird()
        if cmd == "cancelled": raise asyncio.CancelledError()
        if cmd == "recursion": return self.handle(data, ctx)
        if cmd == "ids": ctx.set_response_status(404, idx=9)
        if cmd == "exit": sys.exit(4)
        if cmd == "interrupt": raise KeyboardInterrupt
        if cmd.startswith("pe:"): raise PredictionException("custom message", int(cmd[3:]))
        if cmd == "pe": raise PredictionException("no code given")
        if cmd == "pe text": raise PredictionException("m", "404")
        if cmd == "pe object": raise PredictionException(["m"], 404)
        return ["ok"] * len(data)
"""


def test_one_requests_status_and_headers_do_not_touch_the_others(session: Session, tmp_path: Path) -> None:
    code = """
    def handle(data, ctx):
        if data is None:
            return None
        out = []
        for i, row in enumerate(data):
            n = row["body"]["n"]
            if n < 0:
                ctx.set_response_status(code=422, phrase="negative", idx=i)
                ctx.set_response_header(i, "X-Why", "negative")
            out.append({"n": n, "batch": len(data)})
        return out
    """
    session.load(make_model(tmp_path, {"h.py": textwrap.dedent(code)}), "h.py")
    results = session.run(*[body(b'{"n": %d}' % n, "application/json", "id%d" % n) for n in (1, -5, 3)])
    assert [r.status for r in results] == [0, 422, 0]
    assert [r.headers for r in results] == [[], [("X-Why", "negative")], []]
    assert [json.loads(r.body) for r in results] == [{"n": n, "batch": 3} for n in (1, -5, 3)]
    assert session.run(body(b'{"n": 1}', "application/json"))[0].status == 0, "nothing stays for the next batch"


@pytest.mark.parametrize(
    ("command", "reason", "status", "message"),
    [
        ("raise", "handler_failed", 503, "Prediction failed"),
        ("weird", "handler_failed", 503, "Prediction failed"),
        ("cancelled", "handler_failed", 503, "Prediction failed"),
        ("recursion", "handler_failed", 503, "Prediction failed"),
        ("ids", "handler_failed", 503, "Prediction failed"),
        ("memory", "out_of_memory", 507, "Out of resources"),
        ("cuda", "out_of_memory", 507, "Out of resources"),
        ("pe", "handler_failed", 500, "no code given"),
        ("pe:400", "handler_failed", 400, "custom message"),
        ("pe:299", "handler_failed", 299, "custom message"),
        ("pe:413", "handler_failed", 507, "custom message"),
        ("pe:999", "handler_failed", 999, "custom message"),
        ("pe:42", "handler_failed", 500, "custom message"),
        ("pe:100", "handler_failed", 500, "custom message"),
        ("pe:-1", "handler_failed", 500, "custom message"),
        ("pe text", "internal", 500, "Worker died."),
        ("pe object", "internal", 500, "Worker died."),
    ],
)
def test_what_a_handler_raises(session: Session, tmp_path: Path, command: str, reason: str, status: int, message: str) -> None:
    session.load(make_model(tmp_path, {"h.py": FAULTS}), "h.py")
    results = session.run(body(command.encode(), "text/plain"), body(b"x", "text/plain", "id-1"))
    assert [(r.outcome, r.reason, r.status, r.message) for r in results] == [(1, reason, status, message)] * 2
    assert "Error" in results[0].detail or "Exception" in results[0].detail or "Weird" in results[0].detail
    assert "secret" not in results[0].message
    assert session.run(body(b"fine", "text/plain"))[0].body == b"ok"


def test_status_42_is_explained_in_the_log(session: Session, tmp_path: Path) -> None:
    session.load(make_model(tmp_path, {"h.py": FAULTS}), "h.py")
    assert "status 42" in session.run(body(b"pe:42", "text/plain"))[0].detail


def test_a_prediction_exception_with_200_is_torchserves_oddity(session: Session, tmp_path: Path) -> None:
    session.load(make_model(tmp_path, {"h.py": FAULTS}), "h.py")
    assert session.run(body(b"pe:200", "text/plain"))[0][:4] == (0, 200, [], b"error")


def test_a_traceback_begins_in_the_handler(session: Session, tmp_path: Path) -> None:
    session.load(make_model(tmp_path, {"h.py": FAULTS}), "h.py")
    detail = session.run(body(b"raise", "text/plain"))[0].detail
    assert detail.splitlines()[1].startswith('  File "%s"' % (tmp_path / "h.py"))
    assert detail.endswith("ValueError: secret detail")


@pytest.mark.parametrize(("command", "kind"), [("exit", SystemExit), ("interrupt", KeyboardInterrupt)])
def test_what_ends_the_process(
    session: Session, tmp_path: Path, command: str, kind: Any, caplog: pytest.LogCaptureFixture
) -> None:
    session.load(make_model(tmp_path, {"h.py": FAULTS}), "h.py")
    session.transport.jobs.append((library.BATCH, encode_batch(1, [body(command.encode(), "text/plain")])))
    given = len(session.transport.given)
    with pytest.raises(kind):
        session.worker.serve()
    assert len(session.transport.given) == given, "the server answers for a worker that died"
    assert "the handler ended the process" in caplog.text
    assert session.scope.ids == ()


def test_sys_exit_while_loading_is_answered_and_ends_the_process(session: Session, tmp_path: Path) -> None:
    with pytest.raises(SystemExit) as ended:
        session.load(make_model(tmp_path, {"h.py": "import sys\nsys.exit(7)\n"}), "h.py")
    assert ended.value.code == 7
    failure = json.loads(session.transport.given[-1][1])["failure"]
    assert failure["message"] == "SystemExit: the handler ended the process with sys.exit(7) while it was loading (h.py:2)"


UNSENDABLE = """
class H:
    def initialize(self, ctx): pass
    def handle(self, data, ctx):
        ctx.set_response_header(0, "X-N", 5)
        return ["x"] * len(data)
"""


def test_what_torchserves_worker_dies_of_fails_its_own_request_and_says_why(session: Session, tmp_path: Path) -> None:
    session.load(make_model(tmp_path, {"h.py": UNSENDABLE}), "h.py")
    results = session.run(body(b"x"), body(b"y", id="2"))
    assert (results[0].reason, results[0].status, results[0].message) == ("internal", 500, "Worker died.")
    assert results[0].detail == "the value of response header 'X-N' is a int; it has to be a str"
    assert results[1].body == b"x"
    assert session.run(body(b"x"))[0].detail == results[0].detail, "a batch of one"


STREAM = """
import threading
from ts.handler_utils.utils import send_intermediate_predict_response as send
from ts.protocol.otf_message_handler import send_intermediate_predict_response as old_send
late = None
class H:
    def initialize(self, ctx): pass
    def handle(self, data, ctx):
        global late
        cmd = data[0]["body"]
        ids = ctx.request_ids
        late = lambda: send(["late"] * len(data), ids, "m", 200, ctx)
        if cmd == "set":
            send([{1}], ids, "m", 200, ctx)
        if cmd == "header":
            ctx.set_response_header(0, "a b", "x")
            send(["p"], ids, "m", 200, ctx)
        if cmd == "error":
            send(["p"], ids, "not today", 409, ctx)
            return ["x"]
        if cmd == "odd":
            send(["p"], ids, "odd", 42, ctx)
            return ["x"]
        if cmd == "some":
            send({1: "only"}, {1: ids[1]}, "m", 200, ctx)
            return ["a", "b"]
        if cmd == "socket":
            ctx.cl_socket.sendall(b"x")
        if cmd == "status":
            ctx.set_response_status(202, idx=0)
        send(["a"] * len(data), ids, "m", 200, ctx)
        old_send([{"n": 1}] * len(data), ids, "m", 200, context=ctx)
        if cmd == "raise": raise ValueError("mid stream")
        return ["last"] * len(data)
"""


def streamed(session: Session, tmp_path: Path, *commands: str) -> List[Any]:
    session.load(make_model(tmp_path, {"h.py": STREAM}), "h.py")
    return session.frames(*[body(c.encode(), "text/plain", "id%d" % i) for i, c in enumerate(commands)])


@pytest.mark.filterwarnings("ignore::PendingDeprecationWarning")
def test_a_stream(session: Session, tmp_path: Path) -> None:
    frames = streamed(session, tmp_path, "", "")
    assert [kind for kind, _ in frames] == [3, 3, 2]
    assert [[r.body for r in results] for _, results in frames] == [[b"a"] * 2, [b'{\n  "n": 1\n}'] * 2, [b"last"] * 2]
    said = [[dict(r.headers)["ts_stream_next"] for r in results] for _, results in frames]
    assert said == [["true"] * 2, ["true"] * 2, ["false"] * 2]
    (result,) = session.run(body(b"x", "text/plain"))
    assert result.body == b"last"


@pytest.mark.filterwarnings("ignore::PendingDeprecationWarning")
def test_status_of_a_stream(session: Session, tmp_path: Path) -> None:
    assert [results[0].status for _, results in streamed(session, tmp_path, "status")] == [202, 202, 202]


@pytest.mark.filterwarnings("ignore::PendingDeprecationWarning")
def test_a_stream_that_breaks_off(session: Session, tmp_path: Path) -> None:
    frames = streamed(session, tmp_path, "raise")
    assert [kind for kind, _ in frames] == [3, 3, 2]
    assert frames[-1][1][0].message == "Prediction failed"


def test_an_error_as_a_piece(session: Session, tmp_path: Path) -> None:
    (_, (piece,)), (_, (last,)) = streamed(session, tmp_path, "error")
    assert (piece.outcome, piece.status, piece.message) == (1, 409, "not today")
    (odd,) = session.frames(body(b"odd", "text/plain"))[0][1]
    assert (odd.outcome, odd.status) == (1, 500), "HTTP has no 42"
    assert last.body == b"x"


def test_a_piece_for_some_requests_is_empty_for_the_others(session: Session, tmp_path: Path) -> None:
    (_, pieces), (_, lasts) = streamed(session, tmp_path, "some", "")
    assert [p.body for p in pieces] == [b"", b"only"]
    assert [r.body for r in lasts] == [b"a", b"b"]


@pytest.mark.parametrize(
    ("command", "message", "said"),
    [
        ("set", "Unsupported model output data type.", "Object of type set is not JSON serializable (h.py:14)"),
        ("header", "Worker died.", "'a b' cannot be the name of a response header (h.py:17)"),
        ("socket", "Prediction failed", "send_intermediate_predict_response"),
    ],
)
def test_a_piece_that_cannot_be_sent(session: Session, tmp_path: Path, command: str, message: str, said: str) -> None:
    ((kind, (result,)),) = streamed(session, tmp_path, command)
    assert (kind, result.message) == (2, message)
    assert said in result.detail


@pytest.mark.filterwarnings("ignore::PendingDeprecationWarning")
def test_a_piece_after_the_end_is_refused(session: Session, tmp_path: Path) -> None:
    streamed(session, tmp_path, "")
    given = len(session.transport.given)
    with pytest.raises(RuntimeError, match="after the handler had returned"):
        sys.modules["h"].late()  # type: ignore[attr-defined]
    assert len(session.transport.given) == given


def test_only_the_first_rank_streams(session: Session, tmp_path: Path) -> None:
    os.environ["LOCAL_RANK"] = "1"
    code = STREAM.replace("old_send([", "send([").replace("context=ctx", "ctx")
    session.load(make_model(tmp_path, {"h.py": code}), "h.py")
    assert [kind for kind, _ in session.frames(body(b"", "text/plain"))] == [2]


def test_a_coroutine_handler(session: Session, tmp_path: Path) -> None:
    code = """
import asyncio
class H:
    def initialize(self, ctx): self.loop = asyncio.get_event_loop()
    async def handle(self, data, ctx):
        await asyncio.sleep(0)
        return [str(asyncio.get_running_loop() is self.loop)]
"""
    model = make_model(tmp_path, {"h.py": code, "c.yaml": "asyncCommunication: true\n"}, handler="h.py", configFile="c.yaml")
    session.load(model, "h.py")
    assert session.run(body(b"x"))[0].body == b"True"


def test_a_coroutine_handler_without_its_setting(session: Session, tmp_path: Path) -> None:
    code = "class H:\n    def initialize(self, ctx): pass\n    async def handle(self, data, ctx): return ['x']\n"
    session.load(make_model(tmp_path, {"h.py": code}), "h.py")
    with pytest.warns(RuntimeWarning, match="never awaited"):
        (result,) = session.run(body(b"x"))
        import gc

        gc.collect()
    assert "returned a coroutine" in result.detail


def test_ids_are_in_scope_while_the_batch_runs(session: Session, tmp_path: Path) -> None:
    code = """
class H:
    def initialize(self, ctx): ctx.seen = self.seen = []
    def handle(self, d, c): self.seen.append(scope()); return ['x'] * len(d)
"""
    session.load(make_model(tmp_path, {"h.py": code}), "h.py")
    sys.modules["h"].scope = lambda: session.scope.ids  # type: ignore[attr-defined]
    session.run(body(b"x", id="one"), body(b"y", id="two"))
    context = session.worker._model.context  # type: ignore[union-attr]
    assert context.seen == [("one", "two")]
    assert session.scope.ids == ()


def test_the_frame_is_let_go_before_the_handler_runs(session: Session, tmp_path: Path) -> None:
    code = "def handle(data, ctx):\n    if data: check()\n    return [bytes(r['body']) for r in data or ()]\n"
    session.load(make_model(tmp_path, {"h.py": code}), "h.py")
    frame = bytearray(encode_batch(1, [body(b"abc"), body(b"d" * 100_000)]))
    window = memoryview(frame)

    class Once(MemoryTransport):
        def take(self) -> library.Job:
            if self.jobs:
                self.jobs.clear()
                return library.Job(library.BATCH, 1, window[:])
            return library.Job(library.STOP, 0, memoryview(b""))

    def check() -> None:
        window.release()  # BufferError if anybody still has a part of it
        frame.append(0)

    sys.modules["h"].check = check  # type: ignore[attr-defined]
    session.worker._transport = once = Once([(library.BATCH, b"")])
    session.worker.serve()
    assert len(once.given) == 1
    assert b"abc" in once.given[0][1]


def test_an_empty_batch(session: Session, tmp_path: Path) -> None:
    session.load(make_model(tmp_path, {"h.py": FAULTS.replace('data[0]["body"]', "'fine'")}), "h.py")
    assert session.run() == []


def test_unload_lets_the_handler_go(session: Session, tmp_path: Path) -> None:
    code = """
class H:
    def initialize(self, ctx): self.me = self
    def handle(self, d, c): return []
    def __del__(self): gone()
"""
    session.load(make_model(tmp_path, {"h.py": code}), "h.py")
    seen: List[int] = []
    sys.modules["h"].gone = lambda: seen.append(1)  # type: ignore[attr-defined]
    assert session.job(library.UNLOAD, b"") == [(2, b"", True)]
    assert seen == [1]


def test_a_broken_frame_ends_the_loop(session: Session, tmp_path: Path) -> None:
    session.load(make_model(tmp_path, {"h.py": FAULTS}), "h.py")
    session.transport.jobs.append((library.BATCH, b"\x01\x00nonsense"))
    with pytest.raises(FrameError):
        session.worker.serve()


def test_a_batch_before_the_load_ends_the_loop(session: Session) -> None:
    session.transport.jobs.append((library.BATCH, encode_batch(1, [])))
    with pytest.raises(RuntimeError, match="before a model was loaded"):
        session.worker.serve()


def test_a_bad_load_leaves_the_worker_able_to_load(session: Session, tmp_path: Path) -> None:
    assert "failure" in session.load(make_model(tmp_path / "a", {"h1.py": "1/0"}), "h1.py")
    assert "failure" not in session.load(make_model(tmp_path / "b", {"h2.py": FAULTS}), "h2.py")


def test_two_models_with_the_same_names_have_their_own_files(tmp_path: Path) -> None:
    """Each in its process, as in the server: the four values of a model are its own."""
    handler = """
import json, os, utils
from pkg import tag
class H:
    def initialize(self, ctx): self.d = ctx.system_properties["model_dir"]
    def handle(self, data, ctx):
        r = lambda p: json.load(open(os.path.join(self.d, p)))["v"]
        return [[utils.NAME, tag, r("conf.json"), r("pkg/conf.json")]] * len(data)
"""
    for name in "AB":
        files = {
            "h.py": handler,
            "utils.py": "NAME = %r" % name,
            "pkg/__init__.py": "tag = %r" % ("tag" + name),
            "conf.json": '{"v": "%s1"}' % name,
            "pkg/conf.json": '{"v": "%s2"}' % name,
            "logging.py": "raise SystemExit('the model logging.py was imported')",
        }
        model = make_model(tmp_path / name, files)
        script = """
from workerkit import *
s = Session()
assert s.load(Path.cwd(), "h.py") == {"features": []}
print(s.run(body(b"x"))[0].body.decode())
"""
        out = run_python(script, model)
        assert json.loads(out.stdout) == [name, "tag" + name, name + "1", name + "2"]
        assert "logging.py in the model's folder is hidden" in out.stderr


FORK = """
import os, sys, multiprocessing, subprocess, warnings
warnings.simplefilter("ignore")
def square(x): return x * x
class H:
    def initialize(self, ctx): pass
    def handle(self, data, ctx):
        how = data[0]["body"]
        if how == "return":
            pid = os.fork()
            if pid == 0:
                return ["from the child"]
            return [str(os.WEXITSTATUS(os.waitpid(pid, 0)[1]))]
        if how == "exit":
            pid = os.fork()
            if pid == 0:
                sys.exit(3)
            return [str(os.WEXITSTATUS(os.waitpid(pid, 0)[1]))]
        if how == "raise":
            pid = os.fork()
            if pid == 0:
                raise ValueError("in the child")
            return [str(os.WEXITSTATUS(os.waitpid(pid, 0)[1]))]
        if how == "pool":
            with multiprocessing.get_context("fork").Pool(2) as pool:
                return [str(sum(pool.map(square, range(10))))]
        return [subprocess.check_output([sys.executable, "-c", "import ts.context; print('imported')"]).strip()]
"""


@pytest.mark.parametrize(
    ("how", "wanted"), [("return", b"0"), ("exit", b"3"), ("raise", b"0"), ("pool", b"285"), ("subprocess", b"imported")]
)
def test_a_handler_that_forks(tmp_path: Path, how: str, wanted: bytes) -> None:
    model = make_model(tmp_path, {"h.py": FORK})
    script = """
    from workerkit import *
    s = Session()
    assert s.load(Path.cwd(), "h.py") == {"features": []}
    try:
        print(s.run(body(%r.encode(), "text/plain"))[0].body.decode(), flush=True)
    except SystemExit as err:
        os._exit(err.code)
    """
    assert run_python(textwrap.dedent(script) % how, model).stdout.split() == [wanted.decode()]


def run_python(script: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    here = Path(__file__).parent
    path = os.pathsep.join([str(here), str(here.parents[1] / "src")])
    script = "import sys; sys.path.remove('')\n" + script  # the working folder, which a worker does not have there either
    return subprocess.run(
        [sys.executable, "-c", script],
        cwd=str(cwd),
        env=dict(os.environ, PYTHONPATH=path),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def test_threads_of_a_handler_may_send_pieces(session: Session, tmp_path: Path) -> None:
    code = """
import threading
from ts.handler_utils.utils import send_intermediate_predict_response as send
class H:
    def initialize(self, ctx): pass
    def handle(self, data, ctx):
        t = threading.Thread(target=lambda: [send([str(i)], ctx.request_ids, "m", 200, ctx) for i in range(50)])
        t.start(); t.join()
        return ["end"]
"""
    session.load(make_model(tmp_path, {"h.py": code}), "h.py")
    frames = session.frames(body(b"x"))
    assert [r[0].body.decode() for _, r in frames] == [str(i) for i in range(50)] + ["end"]
    assert threading.active_count() >= 1


def test_request_fields_reach_the_handler(session: Session, tmp_path: Path) -> None:
    code = """
def handle(data, ctx):
    return [[sorted(r), ctx.get_request_header(i, "X"), ctx.get_request_id(i)] for i, r in enumerate(data or ())]
"""
    session.load(make_model(tmp_path, {"h.py": code}), "h.py")
    (result,) = session.run(Request("the-id", [("b", "", b""), ("a", "", b"")], [("X", "1"), ("X", "2")]))
    assert json.loads(result.body) == [["a", "b"], "2", "the-id"]


def test_time_left_reaches_the_handler(session: Session, tmp_path: Path) -> None:
    code = """
def handle(data, ctx):
    return [str(ctx.get_time_left(i)) for i in range(len(data or ()))]
"""
    session.load(make_model(tmp_path, {"h.py": code}), "h.py")
    soon, past = int((time.time() + 60) * 1e9), int((time.time() - 60) * 1e9)
    results = session.run(*(Request(str(at), [("b", "", b"")], [], at) for at in (0, soon, past)))
    limitless, left, over = [r.body.decode() for r in results]
    assert limitless == "None"
    assert 30 < float(left) <= 60
    assert float(over) == 0.0
