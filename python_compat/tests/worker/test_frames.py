"""The frame decoder and encoder against an independent writer and reader of frames (workerkit)."""

from __future__ import annotations

import struct
from contextlib import suppress
from typing import List, Tuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from workerkit import HEAD, Request, body, decode_results, encode_batch, text

from flambeau.worker.frames import PIECE, RESULTS, Answer, Failure, FrameError, decode_batch, encode_results

names = st.text(st.characters(blacklist_categories=["Cs"]), max_size=12)
requests = st.lists(
    st.builds(
        Request,
        names,
        st.lists(st.tuples(names, names, st.binary(max_size=40)), max_size=4),
        st.lists(st.tuples(names, names), max_size=4),
        st.integers(-(2**63), 2**63 - 1),
    ),
    max_size=5,
)


def decoded(frame: bytes) -> Tuple[int, List[Request]]:
    batch_id, items = decode_batch(memoryview(frame))
    return batch_id, [
        Request(i.id, [(name, kind, bytes(data)) for name, kind, data in i.parts], i.headers, i.deadline) for i in items
    ]


@given(st.integers(0, 2**64 - 1), requests)
def test_a_batch_is_read_as_it_was_written(batch_id: int, written: List[Request]) -> None:
    assert decoded(encode_batch(batch_id, written)) == (batch_id, [r._replace(parts=list(r.parts)) for r in written])


@given(requests, st.data())
def test_a_batch_that_is_cut_short_is_refused(written: List[Request], data: st.DataObject) -> None:
    frame = encode_batch(7, written)
    cut = data.draw(st.integers(0, len(frame) - 1))
    with pytest.raises(FrameError):
        decode_batch(memoryview(frame[:cut]))


@given(st.binary(max_size=200))
def test_any_bytes_are_read_or_refused(frame: bytes) -> None:
    with suppress(FrameError):
        decode_batch(memoryview(frame))


@given(requests.filter(bool), st.data())
@settings(max_examples=300)
def test_a_damaged_batch_is_read_or_refused(written: List[Request], data: st.DataObject) -> None:
    frame = bytearray(encode_batch(7, written))
    at = data.draw(st.integers(0, len(frame) - 1))
    frame[at] = data.draw(st.integers(0, 255))
    with suppress(FrameError):
        decode_batch(memoryview(bytes(frame)))


def test_lengths_beyond_the_frame_are_refused_without_taking_memory() -> None:
    huge_text = HEAD.pack(1, 0, 0, 1, 1) + struct.pack("<I", 0xFFFFFFFF)
    huge_blob = HEAD.pack(1, 0, 0, 1, 1) + text("id") + struct.pack("<qIIII", 0, 0, 1, 0, 0) + struct.pack("<Q", 2**63)
    many = HEAD.pack(1, 0, 0, 0xFFFFFFFF, 1)
    for frame in (huge_text, huge_blob, many):
        with pytest.raises(FrameError, match="ends inside"):
            decode_batch(memoryview(frame))


def test_bytes_behind_the_last_item_are_refused() -> None:
    with pytest.raises(FrameError, match="2 bytes after"):
        decode_batch(memoryview(encode_batch(1, [body(b"x")]) + b"zz"))


def test_another_kind_is_refused() -> None:
    with pytest.raises(FrameError, match="kind 4"):
        decode_batch(memoryview(encode_batch(1, [], kind=4)))


@pytest.mark.parametrize("size", [0, 1, 64 * 1024 - 1, 64 * 1024, 3_000_000])
def test_payloads_are_windows_on_the_frame(size: int) -> None:
    frame = bytearray(encode_batch(1, [body(b"a" * size, "image/png"), body(b"b")]))
    _, items = decode_batch(memoryview(frame))
    assert [len(i.parts[0][2]) for i in items] == [size, 1]
    frame[-1] = ord("c")
    assert bytes(items[1].parts[0][2]) == b"c"


def test_text_that_is_not_utf8_is_read_with_replacements() -> None:
    frame = encode_batch(1, [Request("id", [], [("X-A", "e\udcff")])])
    _, items = decode_batch(memoryview(frame))
    assert items[0].headers[0][1].startswith("e\ufffd")


@given(
    st.integers(0, 2**64 - 1),
    st.lists(st.tuples(st.binary(max_size=50), st.integers(0, 999), st.lists(st.tuples(names, names), max_size=3))),
)
def test_answers_are_written_as_the_server_reads_them(batch_id: int, written: list) -> None:  # type: ignore[type-arg]
    answers = [Answer(data, status, [(n.encode(), v.encode()) for n, v in fields]) for data, status, fields in written]
    kind, got_id, results = decode_results(encode_results(RESULTS, batch_id, answers))
    assert (kind, got_id) == (2, batch_id)
    assert [(r.outcome, r.body, r.status, r.headers) for r in results] == [(0, d, s, list(f)) for d, s, f in written]


def test_failures_and_answers_may_stand_side_by_side() -> None:
    frame = encode_results(PIECE, 3, [Failure("internal", 500, "né", "d"), Answer(bytearray(b"x"))])
    kind, _, (failed, answered) = decode_results(frame)
    assert kind == 3
    assert (failed.outcome, failed.status, failed.reason, failed.message, failed.detail) == (1, 500, "internal", "né", "d")
    assert (answered.outcome, answered.body) == (0, b"x")


def test_a_message_that_utf8_cannot_encode_is_escaped() -> None:
    _, _, (failed,) = decode_results(encode_results(RESULTS, 3, [Failure("internal", 500, "a\ud800b", "")]))
    assert failed.message == "a\\ud800b"
