"""How lines of several processes become lines of one log."""

from __future__ import annotations

import os
from pathlib import Path
from typing import List, Tuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flambeau.parallel.output import Outputs, Source


class Recorder:
    """Stands for the log's output."""

    def __init__(self) -> None:
        self.lines: List[Tuple[bytes, Tuple[str, ...], str]] = []

    def write_for(self, lines: bytes, ids: Tuple[str, ...], level: str) -> None:
        self.lines.append((lines, ids, level))


def source(log: Recorder) -> Source:
    return Source(-1, "rank 1", log)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("written", "want"),
    [
        (b"one\ntwo\n", [(b"[rank 1] one\n", (), ""), (b"[rank 1] two\n", (), "")]),
        (b"\n", [(b"[rank 1] \n", (), "")]),
        (b"unfinished", [(b"[rank 1] unfinished\n", (), "")]),
        (b"[METRICS]A.ms:1|#x\n", [(b"[METRICS]A.ms:1|#x\n", (), "")]),
        (b'\x1e{"ids": ["a", "b"], "level": "INFO"}\nx\n', [(b"[rank 1] x\n", ("a", "b"), "INFO")]),
        (b'\x1e{"ids": ["a"], "level": "INFO"}\n\x1e{"ids": [], "level": ""}\nx\n', [(b"[rank 1] x\n", (), "")]),
        (b"\x1enonsense\nx\n", [(b"[rank 1] x\n", (), "")]),
        (b"\x1e[]\nx\n", [(b"[rank 1] x\n", (), "")]),
    ],
)
def test_lines(written: bytes, want: List[Tuple[bytes, Tuple[str, ...], str]]) -> None:
    log = Recorder()
    one = source(log)
    for at in range(len(written)):
        one.feed(written[at : at + 1])
    one.finish()
    assert log.lines == want


def test_a_long_line_comes_in_pieces() -> None:
    log = Recorder()
    one = source(log)
    one.feed(b"x" * 200_000 + b"\n")
    one.finish()
    assert sum(line.count(b"x") for line, _, _ in log.lines) == 200_000


@given(st.lists(st.binary(max_size=40), max_size=8))
def test_nothing_is_lost_whatever_is_written(chunks: List[bytes]) -> None:
    log = Recorder()
    one = source(log)
    for chunk in chunks:
        one.feed(chunk)
    one.finish()
    whole = b"".join(chunks)
    lines = whole.split(b"\n")
    if not lines[-1]:
        lines.pop()
    want = [line if line.startswith(b"[METRICS]") else b"[rank 1] " + line for line in lines if not line.startswith(b"\x1e")]
    assert [line[:-1] for line, _, _ in log.lines] == want


def test_reading_ends_with_the_writers(tmp_path: Path) -> None:
    log, outputs = Recorder(), Outputs()
    read, write = os.pipe()
    outputs.add(read, "rank 1", log)  # type: ignore[arg-type]
    outputs.start()
    os.write(write, b"hello\nwor")
    assert outputs.wait("rank 1", 0.0) in ("", "hello")
    os.write(write, b"ld")
    os.close(write)
    assert outputs.wait("rank 1", 30.0) == "hello\nworld"
    assert [line for line, _, _ in log.lines] == [b"[rank 1] hello\n", b"[rank 1] world\n"]
    assert outputs.wait("nobody", 0.0) == ""
