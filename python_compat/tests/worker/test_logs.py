"""Streams and markers, over real pipes."""

from __future__ import annotations

import io
import json
import logging
import os
import sys
import threading
from contextlib import redirect_stdout
from typing import Iterator, List, Tuple

import pytest

from flambeau.worker import logs

Line = Tuple[str, Tuple[str, ...], str]


class Pipes:
    """stdout and stderr of a worker in this process, and what the server would read of them."""

    def __init__(self) -> None:
        self.scope = logs.Scope()
        self.out, self._out = os.pipe()
        self.err, self._err = os.pipe()

    def install(self) -> None:
        for handler in list(logging.getLogger().handlers):
            logging.getLogger().removeHandler(handler)
        logs.install(self.scope, self._out, self._err)

    def raw(self, fd: int) -> bytes:
        logs.flush()
        os.set_blocking(fd, False)
        data = b""
        while True:
            try:
                chunk = os.read(fd, 1 << 20)
            except BlockingIOError:
                return data
            data += chunk

    def lines(self, fd: int = -1) -> List[Line]:
        """Each line with the requests and the level that the markers before it say."""
        ids: Tuple[str, ...] = ()
        level = ""
        out = []
        for line in self.raw(self.out if fd < 0 else fd).decode("utf-8").split("\n"):
            if line.startswith("\x1e"):
                marker = json.loads(line[1:])
                assert set(marker) == {"ids", "level"}
                ids, level = tuple(marker["ids"]), marker["level"]
            else:
                out.append((line, ids, level))
        assert out.pop()[0] == "", "the last line is ended"
        return out


@pytest.fixture
def pipes() -> Iterator[Pipes]:
    made = Pipes()
    yield made
    for fd in (made.out, made._out, made.err, made._err):
        os.close(fd)


def test_nothing_to_say_needs_no_marker(pipes: Pipes) -> None:
    print("one")
    print("two")
    assert pipes.raw(pipes.out) == b"one\ntwo\n"


def test_lines_carry_their_requests(pipes: Pipes) -> None:
    print("before")
    pipes.scope.ids = ("a", "b")
    print("in")
    print("still in")
    sys.stderr.write("to stderr\n")
    pipes.scope.ids = ()
    print("after")
    assert pipes.lines() == [("before", (), ""), ("in", ("a", "b"), ""), ("still in", ("a", "b"), ""), ("after", (), "")]
    assert pipes.lines(pipes.err) == [("to stderr", ("a", "b"), "")]


def test_a_batch_that_says_nothing_writes_nothing(pipes: Pipes) -> None:
    for number in range(100):
        pipes.scope.ids = ("id%d" % number,)
        pipes.scope.ids = ()
    assert pipes.raw(pipes.out) == b""


def test_markers_come_only_with_a_change(pipes: Pipes) -> None:
    pipes.scope.ids = ("a",)
    for _ in range(10):
        print("x")
    pipes.scope.ids = ("a",)  # another tuple that says the same
    print("x")
    assert pipes.raw(pipes.out).count(b"\x1e") == 1


def test_records_carry_their_level(pipes: Pipes) -> None:
    log = logging.getLogger("some.handler")
    log.debug("not shown, as on TorchServe")
    log.info("i %s", "é")
    log.warning("w")
    log.log(35, "between")
    log.error("e")
    log.critical("c")
    log.log(99, "above")
    print("p")
    assert [(text, level) for text, _, level in pipes.lines()] == [
        ("i é", "INFO"),
        ("w", "WARNING"),
        ("between", "WARNING"),
        ("e", "ERROR"),
        ("c", "CRITICAL"),
        ("above", "CRITICAL"),
        ("p", ""),
    ]


def test_all_lines_of_a_record_have_its_level(pipes: Pipes) -> None:
    try:
        raise ValueError("x")
    except ValueError:
        logging.getLogger("h").exception("failed")
    assert {level for _, _, level in pipes.lines()} == {"ERROR"}


def test_basic_config_of_a_handler_changes_nothing(pipes: Pipes) -> None:
    logging.basicConfig(format="XX %(message)s", level=logging.DEBUG, stream=sys.stderr)
    logging.getLogger("h").info("plain")
    assert pipes.lines() == [("plain", (), "INFO")]


def test_a_record_begins_a_line_of_its_own(pipes: Pipes) -> None:
    print("partial", end="")
    logging.getLogger("h").info("[METRICS]x")
    sys.stdout.write("half ")
    sys.stdout.flush()
    sys.stdout.write("and half\n")
    assert [text for text, _, _ in pipes.lines()] == ["partial", "[METRICS]x", "half and half"]


def test_records_of_one_level_after_a_partial_line(pipes: Pipes) -> None:
    log = logging.getLogger("h")
    log.info("one")
    sys.stdout.buffer.write(b"raw")
    log.info("two")
    assert [text for text, _, _ in pipes.lines()] == ["one", "raw", "two"]


def test_a_partial_line_keeps_its_requests(pipes: Pipes) -> None:
    pipes.scope.ids = ("a",)
    print("of a", end="", flush=True)
    pipes.scope.ids = ("b",)
    print("of b")
    assert pipes.lines() == [("of a", ("a",), ""), ("of b", ("b",), "")]


def test_a_progress_bar_is_not_torn(pipes: Pipes) -> None:
    pipes.scope.ids = ("a",)
    for step in range(5):
        sys.stderr.write("\r%d%%" % (step * 25))
        sys.stderr.flush()
    sys.stderr.write("\n")
    assert pipes.lines(pipes.err) == [("\r0%\r25%\r50%\r75%\r100%", ("a",), "")]


def test_everything_is_utf8_and_nothing_cannot_be_printed(pipes: Pipes) -> None:
    print("é 你好 \U0001f525 \udcff \ud800")
    logging.getLogger("h").info("\ud800")
    assert [text for text, _, _ in pipes.lines()] == ["é 你好 \U0001f525 \\udcff \\ud800", "\\ud800"]
    assert sys.stdout.encoding.lower() == "utf-8"


def test_what_programs_do_with_stdout(pipes: Pipes) -> None:
    sys.stdout.buffer.write(b"bytes\n")
    sys.stdout.buffer.write(memoryview(b"view\n"))
    sys.stdout.buffer.flush()
    assert sys.stdout.isatty() is False
    assert sys.stdout.writable()
    assert not sys.stdout.readable()
    assert sys.stdout.fileno() == pipes._out
    assert sys.__stdout__ is sys.stdout
    sys.stdout.reconfigure(errors="replace")  # type: ignore[union-attr]
    wrapped = io.TextIOWrapper(sys.stdout.buffer, encoding="latin-1", write_through=True)
    wrapped.write("é\n")
    wrapped.detach()
    print("lines", "joined", sep="\n")
    data = pipes.raw(pipes.out)
    assert data == b"bytes\nview\n\xe9\nlines\njoined\n"


def test_a_handler_that_replaces_stdout(pipes: Pipes) -> None:
    mine = io.StringIO()
    with redirect_stdout(mine):
        print("caught")
        logging.getLogger("h").info("not caught")
    assert mine.getvalue() == "caught\n"
    assert pipes.lines() == [("not caught", (), "INFO")]


def test_a_handler_that_gives_the_root_handler_another_stream(pipes: Pipes) -> None:
    mine = io.StringIO()
    logging.getLogger().handlers[0].setStream(mine)  # type: ignore[attr-defined]
    logging.getLogger("h").info("there")
    assert mine.getvalue() == "there\n"


def test_a_record_that_cannot_be_formatted_does_not_raise(pipes: Pipes) -> None:
    logging.getLogger("h").info("%d", "x")
    assert pipes.lines() == []
    assert "Logging error" in pipes.lines(pipes.err)[0][0]


def test_many_threads_tear_no_line(pipes: Pipes) -> None:
    def write(name: str) -> None:
        for number in range(200):
            sys.stdout.write("%s-%d\n" % (name, number))
            logging.getLogger("h").info("%s/%d", name, number)

    threads = [threading.Thread(target=write, args=(name,)) for name in "abcd"]
    read: List[bytes] = []
    done = threading.Event()

    def drain() -> None:
        while not done.is_set():
            read.append(pipes.raw(pipes.out))

    reader = threading.Thread(target=drain)
    reader.start()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    done.set()
    reader.join()
    data = b"".join(read) + pipes.raw(pipes.out)
    plain = [line for line in data.decode().split("\n") if line and not line.startswith("\x1e")]
    wanted = [name + sep + str(n) for name in "abcd" for sep in "-/" for n in range(200)]
    assert sorted(plain) == sorted(wanted)


def test_a_forked_child_writes_lines_but_no_markers(pipes: Pipes) -> None:
    pipes.scope.ids = ("a",)
    print("parent")
    pid = os.fork()
    if pid == 0:
        pipes.scope.ids = ("child",)
        print("child")
        logging.getLogger("h").error("child record")
        logs.flush()
        os._exit(0)
    assert os.waitpid(pid, 0)[1] == 0
    print("parent")
    assert pipes.lines() == [(t, ("a",), "") for t in ("parent", "child", "child record", "parent")]


def test_a_child_can_write_when_another_thread_held_the_lock_at_the_fork(pipes: Pipes) -> None:
    output = sys.stdout.buffer
    held, free = threading.Event(), threading.Event()

    def hold() -> None:
        with output._lock:  # type: ignore[attr-defined]
            held.set()
            free.wait(10)

    thread = threading.Thread(target=hold)
    thread.start()
    held.wait(10)
    pid = os.fork()
    if pid == 0:
        print("child")
        os._exit(0)
    assert os.waitpid(pid, 0)[1] == 0
    free.set()
    thread.join()
    assert pipes.lines() == [("child", (), "")]


def test_a_pipe_that_was_made_non_blocking(pipes: Pipes) -> None:
    os.set_blocking(pipes._out, False)
    read: List[bytes] = []
    done = threading.Event()

    def drain() -> None:
        while not done.is_set():
            read.append(pipes.raw(pipes.out))

    reader = threading.Thread(target=drain)
    reader.start()
    print("x" * 3_000_000)
    done.set()
    reader.join()
    assert len(b"".join(read) + pipes.raw(pipes.out)) == 3_000_001


def test_a_server_that_is_gone_does_not_fail_a_print() -> None:
    read_end, write_end = os.pipe()
    os.close(read_end)
    output = logs.MarkedOutput(write_end, logs.Scope())
    assert output.write(b"x\n") == 2
    os.close(write_end)
