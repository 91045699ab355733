"""Coroutine handlers: requests of one worker run together, and apart from each other."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import gc
import json
import logging
import sys
import textwrap
import threading
import warnings
from pathlib import Path
from typing import Any, Callable, Dict, Iterator, List

import pytest
from livekit import LIMIT, Server, make_async
from test_loop import run_python
from workerkit import Session, body, encode_batch

from flambeau.worker import eventloop, library
from flambeau.worker.frames import FrameError


@pytest.fixture(autouse=True)
def loops() -> Iterator[None]:
    """The thread's event loop is the test's own, and closed after it."""
    asyncio.set_event_loop(None)
    yield
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with contextlib.suppress(RuntimeError):
            asyncio.get_event_loop().close()
    asyncio.set_event_loop(None)


def serve(folder: Path, code: str, script: Callable[[Server], None], wanted: Any = ("concurrent",)) -> Server:
    server = Server()
    assert server.load(make_async(folder, textwrap.dedent(code)), "h.py") == {"features": list(wanted)}
    server.serve(script)
    return server


def text(data: str, id: str = "id-0") -> Any:
    return body(data.encode(), "text/plain", id)


TOGETHER = """
import asyncio
class H:
    def initialize(self, ctx): self.inside = 0; self.full = asyncio.Event()
    async def handle(self, data, ctx):
        self.inside += 1
        if self.inside == int(data[0]["body"]): self.full.set()
        await self.full.wait()
        ctx.set_response_header(0, "X-Id", ctx.get_request_id(0))
        ctx.set_response_status(200 + int(ctx.get_request_id(0)), idx=0)
        return [ctx.get_request_id(0)] * len(data)
"""


def test_requests_meet_inside_of_the_handler(tmp_path: Path) -> None:
    def script(server: Server) -> None:
        handles = [server.send(text("50", str(i))) for i in range(50)]
        for i, handle in enumerate(handles):
            (result,) = handle.results()
            assert (result.body, result.headers) == (str(i).encode(), [("X-Id", str(i))])
            assert result.status == (200 + i if i else 200), "each request has its own status"

    serve(tmp_path, TOGETHER, script)


def test_batches_of_several(tmp_path: Path) -> None:
    def script(server: Server) -> None:
        handles = [server.send(text("2", str(i)), text("2", "other")) for i in range(2)]
        assert [[r.body for r in h.results()] for h in handles] == [[b"0", b"0"], [b"1", b"1"]]

    serve(tmp_path, TOGETHER, script)


TURNS = """
import asyncio, collections
from ts.handler_utils.utils import send_intermediate_predict_response as send
class H:
    def initialize(self, ctx): self.may = collections.defaultdict(asyncio.Event)
    async def handle(self, data, ctx):
        words = data[0]["body"].split()
        for word in words:
            what, _, name = word.partition(":")
            if what == "wait": await self.may[name].wait()
            if what == "let": self.may[name].set()
            if what == "say": send([name] * len(data), ctx.request_ids, "m", 200, ctx)
            if what == "raise": raise ValueError(name)
            if what == "set": return [{1}]
            if what == "header": ctx.set_response_header(0, "a b", "c")
            if what == "tuple": return ("x",)
            if what == "cancelled": raise asyncio.CancelledError()
            if what == "cancel": asyncio.current_task().cancel()
            if what == "sleep": await asyncio.sleep(0)
            if what == "cancelall":
                for task in asyncio.all_tasks(): task.cancel()
        return [words[-1]] * len(data)
"""


def test_answers_come_in_the_order_in_which_they_are_ready(tmp_path: Path) -> None:
    def script(server: Server) -> None:
        first, second, third = server.send(text("wait:2")), server.send(text("wait:3 let:2")), server.send(text("let:3"))
        assert [h.results()[0].body for h in (first, second, third)] == [b"wait:2", b"let:2", b"let:3"]
        assert [i for i in server.finished if i > 1] == [third.id, second.id, first.id]

    serve(tmp_path, TURNS, script)


def test_pieces_reach_their_own_requests(tmp_path: Path) -> None:
    def script(server: Server) -> None:
        one, two = server.send(text("say:a1 wait:1 say:a2")), server.send(text("say:b1 wait:2 say:b2"))
        assert (one.pieces(1), two.pieces(1)) == ([b"a1"], [b"b1"])
        assert not one.done
        assert server.send(text("let:2")).results()[0].body == b"let:2"
        assert [(kind, r[0].body, dict(r[0].headers)) for kind, r in two.all()] == [
            (3, b"b1", {"ts_stream_next": "true"}),
            (3, b"b2", {"ts_stream_next": "true"}),
            (2, b"say:b2", {"ts_stream_next": "false"}),
        ]
        assert not one.done
        plain = server.send(text("let:1")).results()
        assert plain[0].headers == [], "a request that does not stream has nothing of those that do"
        assert [r[0].body for _, r in one.all()] == [b"a1", b"a2", b"say:a2"]

    serve(tmp_path, TURNS, script)


@pytest.mark.parametrize(
    ("words", "reason", "message", "detail"),
    [
        ("raise:secret", "handler_failed", "Prediction failed", "ValueError: secret"),
        ("set", "invalid_output", "Unsupported model output data type.", "not JSON serializable"),
        ("tuple", "invalid_output", "Invalid model predict output", "a tuple"),
        ("header", "internal", "Worker died.", "cannot be the name"),
        ("cancelled", "handler_failed", "Prediction failed", "CancelledError"),
        ("cancel sleep", "handler_failed", "Prediction failed", "CancelledError"),
        ("say:x raise:late", "handler_failed", "Prediction failed", "ValueError: late"),
    ],
)
def test_a_failure_is_one_requests_own(tmp_path: Path, words: str, reason: str, message: str, detail: str) -> None:
    def script(server: Server) -> None:
        neighbour = server.send(text("wait:x"))
        (result,) = server.send(text(words)).results()
        assert (result.reason, result.message) == (reason, message)
        assert detail in result.detail
        assert not neighbour.done
        server.send(text("let:x"))
        assert neighbour.results()[0].body == b"wait:x"

    serve(tmp_path, TURNS, script)


def test_a_task_that_is_cancelled_as_it_returns_was_answered(tmp_path: Path) -> None:
    def script(server: Server) -> None:
        assert server.send(text("cancel")).results()[0].body == b"cancel"
        assert server.send(text("x")).results()[0].body == b"x"

    serve(tmp_path, TURNS, script)


def test_everything_cancelled_is_answered_and_the_worker_goes_on(tmp_path: Path) -> None:
    def script(server: Server) -> None:
        waiting = server.send(text("wait:never"))
        assert server.send(text("cancelall")).results()[0].body == b"cancelall"
        assert waiting.results()[0].message == "Prediction failed"
        assert server.send(text("x")).results()[0].body == b"x"

    serve(tmp_path, TURNS, script)


def test_a_task_that_is_cancelled_before_it_begins_is_answered(tmp_path: Path) -> None:
    code = """
    import asyncio
    class H:
        def initialize(self, ctx):
            loop = asyncio.get_event_loop()
            real = loop.create_task
            def create_task(coro, **more):
                task = real(coro, **more)
                if self.cancel: task.cancel()
                return task
            loop.create_task = create_task
            self.cancel = False
        async def handle(self, data, ctx):
            self.cancel = data[0]["body"] == "cancel"
            return ["ok"]
    """

    def script(server: Server) -> None:
        assert server.send(text("cancel")).results()[0].body == b"ok"
        (result,) = server.send(text("x")).results()
        assert (result.message, result.status) == ("Prediction failed", 503)

    serve(tmp_path, code, script)


CONTEXTS = """
import threading
class Held:
    def __init__(self, ctx): self.ctx = ctx
class H:
    def initialize(self, ctx):
        self.first = ctx
        ctx.numbers = [1]
        ctx.same = ctx.numbers
        ctx.held = Held(ctx)
        ctx.handler = self
    async def handle(self, data, ctx):
        known = hasattr(ctx, "mine")
        ctx.mine = True
        ctx.numbers.append(2)
        return [[
            ctx is not self.first, known, ctx.numbers, ctx.same is ctx.numbers, ctx.held.ctx is ctx, self.first.request_ids,
            ctx.metrics is not self.first.metrics, ctx.metrics.request_ids == ctx.request_ids, ctx.model_name,
            ctx.system_properties == self.first.system_properties, ctx.handler is not self,
        ]]
"""


def test_each_request_has_a_copy_of_the_context(tmp_path: Path) -> None:
    def script(server: Server) -> None:
        for _ in range(2):
            got = json.loads(server.send(text("x")).results()[0].body)
            assert got == [True, False, [1, 2], True, True, None, True, True, "m", True, True]

    serve(tmp_path, CONTEXTS, script)


UNCOPIABLE = """
import threading
class Stubborn:
    seen = 0
    def __deepcopy__(self, memo):
        Stubborn.seen += 1
        raise OSError("not this one")
class H:
    def initialize(self, ctx):
        ctx.lock = self.lock = threading.Lock()
        ctx.stubborn = self.stubborn = Stubborn()
        ctx.numbers = [1]
    async def handle(self, data, ctx):
        ctx.numbers.append(2)
        return [[ctx.lock is self.lock, ctx.stubborn is self.stubborn, Stubborn.seen, ctx.numbers]]
"""


def test_what_cannot_be_copied_is_shared_and_said_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    def script(server: Server) -> None:
        first, second = (json.loads(server.send(text("x")).results()[0].body) for _ in range(2))
        assert first[:2] == second[:2] == [True, True]
        assert first[3] == second[3] == [1, 2], "the rest is copied all the same"
        assert first[2] == second[2], "it was not tried again"

    serve(tmp_path, UNCOPIABLE, script)
    said = [r.getMessage() for r in caplog.records if "cannot be copied" in r.getMessage()]
    assert [m.split(",")[0] for m in said] == ["context.lock", "context.stubborn"]
    assert "OSError: not this one" in said[1]


LOOPS = """
import asyncio
at_import = asyncio.get_event_loop_policy().new_event_loop()
asyncio.set_event_loop(at_import)
class H:
    def __init__(self): self.made = asyncio.get_event_loop()
    def initialize(self, ctx): self.initialized = asyncio.get_event_loop()
    async def handle(self, data, ctx):
        loop = asyncio.get_running_loop()
        return [[loop is at_import, loop is self.made, loop is self.initialized]]
"""

OWN_LOOP = """
import asyncio
class H:
    def initialize(self, ctx): self.own = asyncio.new_event_loop(); asyncio.set_event_loop(self.own)
    async def handle(self, data, ctx): return [[asyncio.get_running_loop() is self.own]]
"""

RUN = """
import asyncio
async def prepare(): return 7
class H:
    def initialize(self, ctx):
        self.before = asyncio.get_event_loop()
        self.seven = self.before.run_until_complete(prepare())
        self.seven = asyncio.run(prepare())
    async def handle(self, data, ctx): return [[asyncio.get_running_loop() is self.before, self.seven == 7]]
"""


@pytest.mark.parametrize("code", [LOOPS, OWN_LOOP, RUN])
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_the_loop_of_initialize_is_the_one_used_later(tmp_path: Path, code: str) -> None:
    def script(server: Server) -> None:
        assert set(json.loads(server.send(text("x")).results()[0].body)) == {True}

    serve(tmp_path, code, script)


TICKING = """
import asyncio
class H:
    def initialize(self, ctx):
        self.ended = False
        asyncio.get_event_loop().create_task(self.tick())
    async def tick(self):
        try:
            while True:
                await asyncio.sleep(0.001)
                ticked()
        finally:
            await asyncio.sleep(0)
            self.ended = True
            ended()
    async def handle(self, data, ctx): return ["x"]
"""


def test_a_handlers_own_tasks_run_while_nothing_is_asked(tmp_path: Path) -> None:
    ticks, ended = threading.Semaphore(0), threading.Event()

    def script(server: Server) -> None:
        for _ in range(20):
            assert ticks.acquire(timeout=LIMIT), "the loop stands still while no request is there"
        server.send(text("x")).results()
        server.job(library.UNLOAD, b"").wait()
        assert ended.is_set(), "the task was not told to end"

    server = Server()
    server.load(make_async(tmp_path, TICKING), "h.py")
    module = sys.modules["h"]
    module.ticked, module.ended = ticks.release, ended.set  # type: ignore[attr-defined]
    server.serve(script)


UNLOADING = """
import asyncio, threading
class H:
    def initialize(self, ctx): self.me = self
    async def handle(self, data, ctx):
        if data[0]["body"] == "wait":
            loop, go = asyncio.get_running_loop(), asyncio.Event()
            waits(lambda: loop.call_soon_threadsafe(go.set))
            await go.wait()
        return ["done"]
    def __del__(self): gone()
"""


def test_unload_waits_for_what_runs_and_lets_the_handler_go(tmp_path: Path) -> None:
    seen: List[str] = []
    release: List[Callable[[], None]] = []
    inside = threading.Event()

    def waits(go: Callable[[], None]) -> None:
        release.append(go)
        inside.set()

    def script(server: Server) -> None:
        running = server.send(text("wait"))
        assert inside.wait(LIMIT)
        unload = server.job(library.UNLOAD, b"")
        late = server.send(text("now")).results()
        assert late[0].body == b"done", "the loop stands still"
        assert not unload.done
        release[0]()
        unload.wait()
        assert running.done
        assert seen == ["gone"]

    server = Server()
    server.load(make_async(tmp_path, UNLOADING), "h.py")
    module = sys.modules["h"]
    module.waits, module.gone = waits, lambda: seen.append("gone")  # type: ignore[attr-defined]
    server.serve(script)


PLAIN = """
class H:
    def initialize(self, ctx): pass
    def handle(self, data, ctx):
        if data[0]["body"] == "raise": raise ValueError("x")
        return ["plain"] * len(data)
"""


def test_a_plain_function_is_run_and_promises_nothing(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    def script(server: Server) -> None:
        assert server.send(text("x"), text("y")).results()[1].body == b"plain"
        assert server.send(text("raise")).results()[0].message == "Prediction failed"

    serve(tmp_path, PLAIN, script, wanted=())
    assert "no coroutine function" in caplog.text


def test_a_function_that_gives_an_awaitable_is_awaited(tmp_path: Path) -> None:
    code = """
    class H:
        def initialize(self, ctx): pass
        def handle(self, data, ctx): return self.later()
        async def later(self): return ["awaited"]
    """

    def script(server: Server) -> None:
        assert server.send(text("x")).results()[0].body == b"awaited"

    serve(tmp_path, code, script, wanted=())


def test_what_counts_as_a_coroutine_function() -> None:
    async def one(data: Any, ctx: Any) -> None: ...

    def plain(data: Any, ctx: Any) -> None: ...

    class Callable_:
        async def __call__(self, data: Any, ctx: Any) -> None: ...

    class Owner:
        async def handle(self, data: Any, ctx: Any) -> None: ...

    @functools.wraps(one)
    def wrapped(data: Any, ctx: Any) -> Any:
        return one(data, ctx)

    def compiled(data: Any, ctx: Any) -> None: ...

    compiled._is_coroutine = object()  # type: ignore[attr-defined]
    yes: List[Any] = [one, Callable_(), Owner().handle, wrapped, functools.partial(one), functools.partial(wrapped, 1), compiled]
    assert [eventloop.is_coroutine_function(f) for f in yes] == [True] * len(yes)
    no: List[Any] = [plain, functools.partial(plain), Owner, Callable_, len]
    assert [eventloop.is_coroutine_function(f) for f in no] == [False] * len(no)


ENDING = """
import asyncio, sys
class H:
    def initialize(self, ctx): pass
    async def handle(self, data, ctx):
        how = data[0]["body"]
        if how == "exit": sys.exit(4)
        if how == "interrupt": raise KeyboardInterrupt
        if how == "task":
            async def end(): sys.exit(4)
            asyncio.get_running_loop().create_task(end())
        await asyncio.Event().wait()
"""


@pytest.mark.parametrize(("how", "kind"), [("exit", SystemExit), ("interrupt", KeyboardInterrupt), ("task", SystemExit)])
def test_what_ends_the_process(tmp_path: Path, how: str, kind: Any, caplog: pytest.LogCaptureFixture) -> None:
    def script(server: Server) -> None:
        handle = server.send(text(how))
        with server.changed:
            assert server.changed.wait_for(lambda: server.ended, LIMIT)
        assert handle.given == [], "the server answers for a worker that died"

    with pytest.raises(kind):
        serve(tmp_path, ENDING, script)
    assert "the handler ended the process" in caplog.text


def test_a_broken_frame_ends_the_loop(tmp_path: Path) -> None:
    def script(server: Server) -> None:
        server.job(library.BATCH, b"\x01\x00nonsense")

    with pytest.raises(FrameError):
        serve(tmp_path, TURNS, script)


def test_a_batch_after_the_unload_ends_the_loop(tmp_path: Path) -> None:
    def script(server: Server) -> None:
        server.job(library.UNLOAD, b"").wait()
        server.job(library.BATCH, encode_batch(9, [text("x")]))

    with pytest.raises(RuntimeError, match="after the model was unloaded"):
        serve(tmp_path, TURNS, script)


def test_a_transport_that_breaks_ends_the_loop(tmp_path: Path) -> None:
    server = Server()
    server.load(make_async(tmp_path, TURNS), "h.py")

    def take() -> library.Job:
        raise library.LibraryError("broken")

    server.take = take  # type: ignore[method-assign]
    with pytest.raises(library.LibraryError, match="broken"):
        server.serve(lambda server: None)


SCOPES = """
import asyncio
class H:
    def initialize(self, ctx): self.inside = 0; self.full = asyncio.Event(); self.over = asyncio.Event(); self.left = []
    async def child(self):
        self.left.append(scope())
        await self.over.wait()
        self.left.append(scope())
    async def handle(self, data, ctx):
        if data[0]["body"] == "end":
            self.over.set()
            while len(self.left) < 4: await asyncio.sleep(0)
            return [self.left]
        asyncio.get_running_loop().create_task(self.child())
        self.inside += 1
        if self.inside == 2: self.full.set()
        await self.full.wait()
        threaded = await asyncio.get_running_loop().run_in_executor(None, scope)
        return [[scope(), threaded]]
"""


def test_lines_belong_to_the_request_whose_task_writes_them(tmp_path: Path) -> None:
    def script(server: Server) -> None:
        one, two = server.send(text("x", "one")), server.send(text("x", "two"))
        assert json.loads(one.results()[0].body)[0] == ["one"]
        assert json.loads(two.results()[0].body)[0] == ["two"]
        left = json.loads(server.send(text("end")).results()[0].body)
        assert left == [["one"], ["two"], [], []], "a task that outlives its request is nobody's"
        assert server.scope.ids == ()

    server = Server()
    server.load(make_async(tmp_path, SCOPES), "h.py")
    sys.modules["h"].scope = lambda: server.scope.ids  # type: ignore[attr-defined]
    server.serve(script)


def test_threads_may_send_pieces(tmp_path: Path) -> None:
    code = """
    import asyncio
    from ts.handler_utils.utils import send_intermediate_predict_response as send
    class H:
        def initialize(self, ctx): pass
        async def handle(self, data, ctx):
            say = lambda: [send([str(i)], ctx.request_ids, "m", 200, ctx) for i in range(20)]
            await asyncio.get_running_loop().run_in_executor(None, say)
            return ["end"]
    """

    def script(server: Server) -> None:
        handles = [server.send(text("x", str(i))) for i in range(4)]
        for handle in handles:
            assert [r[0].body.decode() for _, r in handle.all()] == [str(i) for i in range(20)] + ["end"]

    serve(tmp_path, code, script)


def test_metrics_name_their_own_request(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    code = """
    import asyncio
    class H:
        def initialize(self, ctx): self.inside = 0; self.full = asyncio.Event()
        async def handle(self, data, ctx):
            self.inside += 1
            if self.inside == 2: self.full.set()
            await self.full.wait()
            ctx.metrics.add_counter("Mine", 1)
            return ["x"]
    """
    caplog.set_level(logging.INFO)

    def script(server: Server) -> None:
        for handle in [server.send(text("x", "one")), server.send(text("x", "two"))]:
            handle.results()

    serve(tmp_path, code, script)
    lines = [r.getMessage() for r in caplog.records if "Mine" in r.getMessage()]
    assert sorted(line.rsplit(",", 1)[1] for line in lines) == ["one", "two"]


FORK = """
import os, sys, warnings
warnings.simplefilter("ignore")
class H:
    def initialize(self, ctx): pass
    async def handle(self, data, ctx):
        pid = os.fork()
        if pid == 0:
            if data[0]["body"] == "exit": sys.exit(3)
            return ["from the child"]
        return [str(os.WEXITSTATUS(os.waitpid(pid, 0)[1]))]
"""


@pytest.mark.parametrize(("how", "wanted"), [("return", "0"), ("exit", "3")])
def test_a_coroutine_that_forks(tmp_path: Path, how: str, wanted: str) -> None:
    model = make_async(tmp_path, FORK)
    script = """
    from workerkit import *
    s = Session()
    assert s.load(Path.cwd(), "h.py") == {"features": ["concurrent"]}
    try:
        print(s.run(body(%r.encode(), "text/plain"))[0].body.decode(), flush=True)
    except SystemExit as err:
        os._exit(err.code)
    """
    assert run_python(textwrap.dedent(script) % how, model).stdout.split() == [wanted]


def test_run_by_itself(tmp_path: Path) -> None:
    """Model.run, for who has no event loop: one batch after another, on the handler's loop."""
    session = Session()
    session.load(make_async(tmp_path, OWN_LOOP), "h.py")
    from flambeau.worker.frames import Item

    (result,) = session.worker._model.run([Item("1", 0, [], [])], lambda piece: None)  # type: ignore[union-attr]
    assert json.loads(bytes(result.body)) == [True]  # type: ignore[union-attr]


def test_nothing_is_kept_of_requests_that_are_done(tmp_path: Path) -> None:
    code = """
    import asyncio
    class Row(dict): pass
    class H:
        def initialize(self, ctx): pass
        async def handle(self, data, ctx):
            ctx.row = Row()
            seen(ctx.row)
            await asyncio.sleep(0)
            return ["x"]
    """
    import weakref

    rows: Dict[int, Any] = {}

    def script(server: Server) -> None:
        for i in range(3):
            server.send(text("x", str(i))).results()

    server = Server()
    server.load(make_async(tmp_path, textwrap.dedent(code)), "h.py")
    sys.modules["h"].seen = lambda row: rows.setdefault(len(rows), weakref.ref(row))  # type: ignore[attr-defined]
    server.serve(script)
    gc.collect()
    assert [ref() for ref in rows.values()] == [None] * 3
