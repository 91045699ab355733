"""The messages between a leader and a rank."""

from __future__ import annotations

import socket
import struct
import threading
from typing import List, Optional

import pytest

from flambeau.parallel.link import HELLO, Link, Message
from flambeau.parallel.rank import LeaderTransport
from flambeau.worker import frames
from flambeau.worker.library import BATCH, LOAD, STOP


def pair() -> List[Link]:
    return [Link(one) for one in socket.socketpair(socket.AF_UNIX)]


@pytest.mark.parametrize(
    "message",
    [
        Message(HELLO, rank=3),
        Message(BATCH, 2**63, b"data", False, 1),
        Message(LOAD, 1, memoryview(b"json")),
        Message(BATCH, 7, b"x" * 5_000_000),
    ],
)
def test_a_message_arrives_as_it_was_sent(message: Message) -> None:
    here, there = pair()
    got: List[Optional[Message]] = []
    reader = threading.Thread(target=lambda: got.append(there.receive()))
    reader.start()
    here.send(message)
    reader.join(30)
    (one,) = got
    assert one is not None
    assert (one.kind, one.id, one.last, one.rank) == (message.kind, message.id, message.last, message.rank)
    assert bytes(one.data) == bytes(message.data)


def test_a_connection_that_ends_inside_a_message_is_no_message() -> None:
    ours, theirs = socket.socketpair(socket.AF_UNIX)
    theirs.sendall(struct.pack("<BBHIQQ", BATCH, 1, 0, 0, 1, 100) + b"less")
    theirs.close()
    assert Link(ours).receive() is None


def test_finishing_ends_one_direction() -> None:
    here, there = pair()
    there.finish()
    assert here.receive() is None
    here.send(Message(BATCH, 5))
    got = there.receive()
    assert got is not None
    assert got.id == 5


def test_a_rank_stops_when_the_leader_is_gone() -> None:
    here, there = pair()
    here.finish()
    assert LeaderTransport(there, 0).take().kind == STOP


@pytest.mark.parametrize("rank", [0, 1])
def test_only_rank_0_answers_batches(rank: int, caplog: pytest.LogCaptureFixture) -> None:
    leader, mine = pair()
    transport = LeaderTransport(mine, rank)
    for id, kind in enumerate((LOAD, BATCH)):
        leader.send(Message(kind, id))
        assert transport.take().kind == kind
    failure = frames.Failure(frames.HANDLER_FAILED, 503, "Prediction failed", "why\nso")
    failed = frames.encode_results(frames.RESULTS, 1, [failure])
    transport.give(1, frames.encode_results(frames.PIECE, 1, [frames.Answer(b"piece")]), False)
    transport.give(1, failed, True)
    transport.give(0, b"loaded", True)
    seen = []
    while not seen or seen[-1] != (LOAD, 0, True):
        message = leader.receive()
        assert message is not None
        seen.append((message.kind, message.id, message.last))
    assert seen == ([(BATCH, 1, False), (BATCH, 1, True)] if rank == 0 else []) + [(LOAD, 0, True)]
    assert ("why\nso" in caplog.text) == (rank == 1)


def test_the_first_failure_of_a_frame() -> None:
    answer, failure = frames.Answer(b"b", 200, [(b"n", b"v")]), frames.Failure("internal", 500, "m", "d")
    assert frames.first_failure(frames.encode_results(frames.RESULTS, 1, [])) is None
    assert frames.first_failure(frames.encode_results(frames.RESULTS, 1, [answer, failure])) is None
    got = frames.first_failure(frames.encode_results(frames.RESULTS, 1, [failure, answer]))
    assert got is not None
    assert (got.reason, got.status, got.message, got.detail) == ("internal", 500, "m", "d")
