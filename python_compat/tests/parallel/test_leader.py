"""A leader with two ranks: what it passes on, and what it does when one of them is gone."""

from __future__ import annotations

import functools
import os
import signal
import sys
import threading
from typing import Set

import pytest
from rankkit import LIMIT, Stage, wait_for

from flambeau.parallel import leader, link
from flambeau.worker import library

# Each rank writes to the folder what it did.
HANDLER = """
    import os, time
    from ts.handler_utils.utils import send_intermediate_predict_response

    RANK = os.environ["LOCAL_RANK"]

    class Handler:
        def initialize(self, context):
            assert open("parallel_handler.py"), "the working folder is the model's"
            print("loading")
            if os.path.exists("fail-%s" % RANK):
                raise ValueError("not this one")
            if os.path.exists("exit-%s" % RANK):
                print("goes away")
                os._exit(3)
            while os.path.exists("wait-%s" % RANK):
                time.sleep(0.01)

        def handle(self, data, context):
            word = bytes(data[0]["body"]).decode()
            with open("did-%s" % RANK, "a") as file:
                file.write(word + ";")
            print("does", word)
            print("[METRICS]Did.Count:1|#by:%s" % RANK)
            return [getattr(self, word)(context)]

        def pid(self, context):
            with open("pid-%s" % RANK, "w") as file:
                file.write(str(os.getpid()))
            return "rank %s of %s" % (RANK, os.environ["WORLD_SIZE"])

        def pieces(self, context):
            for piece in ("a", "b"):
                send_intermediate_predict_response([piece], context.request_ids, "", 200, context)
            return "c"

        def odd(self, context):
            if RANK == "1":
                raise ValueError("rank 1 has bad luck")
            return "fine"

        def exit1(self, context):
            if RANK == "1":
                os._exit(3)
            time.sleep(1000)

        def leave(self, context):
            raise SystemExit(5)
"""


def rank_pids(stage: Stage) -> Set[int]:
    """The processes of the ranks, after a batch "pid"."""
    return {int(wait_for(functools.partial(stage.noted, "pid-%d" % rank))) for rank in (0, 1)}


def test_every_rank_loads_and_works_and_rank_0_answers(stage: Stage) -> None:
    stage.start(HANDLER)
    assert stage.load() == {"features": []}
    assert stage.ask(b"pid") == [b"rank 0 of 2"]
    assert stage.ask(b"pieces") == [b"a", b"b", b"c"]
    for rank in "01":
        wait_for(functools.partial(lambda name: stage.noted(name) == "pid;pieces;", "did-" + rank))
    assert stage.transport.answers(stage.transport.put(library.UNLOAD)) == [b""]
    stage.stop()
    assert stage.ended == []
    wait_for(lambda: not stage.processes())


def test_batches_of_a_pipeline_go_to_rank_0_alone(stage: Stage) -> None:
    stage.start(HANDLER, batches="first")
    assert stage.load() == {"features": []}
    assert [stage.ask(b"pid") for _ in range(3)] == [[b"rank 0 of 2"]] * 3
    stage.transport.answers(stage.transport.put(library.UNLOAD))  # rank 1 does it after all that came before
    assert not stage.model.joinpath("did-1").exists()


def test_what_ranks_write_is_passed_on_with_their_name_and_the_request(stage: Stage) -> None:
    stage.start(HANDLER)
    stage.load()
    stage.ask(b"pid")
    wait_for(lambda: "[rank 0] does pid\n" in stage.written() and "[rank 1] does pid\n" in stage.written())
    written = stage.written()
    assert "[torchrun] torchrun starts 2\n" in written
    assert '\x1e{"ids": ["id-7"], "level": ""}\n[rank ' in written
    wait_for(lambda: "\n[METRICS]Did.Count:1|#by:1\n" in stage.written())  # metrics have to begin their line


def test_a_failure_of_another_rank_is_in_the_log(stage: Stage) -> None:
    stage.start(HANDLER)
    stage.load()
    assert stage.ask(b"odd") == [b"fine"]
    wait_for(lambda: "ValueError: rank 1 has bad luck" in stage.written())
    assert stage.ask(b"pid") == [b"rank 0 of 2"]


@pytest.mark.parametrize("rank", [0, 1])
def test_one_rank_that_refuses_fails_the_load_at_once(stage: Stage, rank: int) -> None:
    stage.model.joinpath("fail-%d" % rank).touch()
    stage.model.joinpath("wait-%d" % (1 - rank)).touch()  # as one that waits for the others to join a group
    stage.start(HANDLER)
    failure = stage.load()["failure"]
    assert failure["message"].startswith("rank %d: ValueError: not this one (parallel_handler.py:" % rank)
    assert "Traceback" in failure["detail"]


def test_a_rank_that_ends_while_it_loads(stage: Stage) -> None:
    stage.model.joinpath("exit-1").touch()
    stage.model.joinpath("wait-0").touch()
    stage.start(HANDLER)
    failure = stage.load()["failure"]
    assert failure["message"] == "rank 1 has ended while the model was loading"
    assert "[rank 1]" not in failure["detail"]
    assert "goes away" in failure["detail"]
    assert stage.ended == []


def test_a_rank_that_ends_in_a_batch_ends_the_worker(stage: Stage, caplog: pytest.LogCaptureFixture) -> None:
    stage.start(HANDLER)
    stage.load()
    job = stage.batch(b"exit1")
    assert wait_for(lambda: stage.ended) == [1]
    assert not stage.transport.answered(job)
    assert "rank 1 has ended: the worker ends, and is started again with all its ranks" in caplog.text


def test_a_handler_that_leaves_ends_the_worker(stage: Stage) -> None:
    stage.start(HANDLER)
    stage.load()
    stage.batch(b"leave")
    assert wait_for(lambda: stage.ended) == [1]


@pytest.mark.parametrize("victim", ["rank", "torchrun"])
def test_a_killed_process_ends_the_idle_worker(stage: Stage, victim: str) -> None:
    stage.start(HANDLER)
    stage.load()
    stage.ask(b"pid")
    ranks = rank_pids(stage)
    (torchrun,) = set(stage.processes()) - ranks
    os.kill(torchrun if victim == "torchrun" else max(ranks), signal.SIGKILL)
    assert wait_for(lambda: stage.ended) == [1]


def test_a_rank_that_is_lost_while_the_leader_stops_changes_nothing(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(leader, "_LAST_WORDS", LIMIT)
    stage.start(HANDLER)
    stage.load()
    stage.ask(b"pid")
    held = os.open(link.log_pipe(stage.folder, 1, "stdout"), os.O_WRONLY)  # its last words are not over yet
    os.kill(int(wait_for(functools.partial(stage.noted, "pid-1"))), signal.SIGKILL)
    assert stage.leader is not None
    wait_for(lambda: stage.leader._lost)
    stage.stop()
    os.close(held)
    wait_for(lambda: not any(thread.name == "flambeau-rank-1" for thread in threading.enumerate()))
    assert stage.ended == []


def test_the_ranks_end_with_the_leader(stage: Stage) -> None:
    stage.start(HANDLER)
    stage.load()
    stage.ask(b"pid")
    ranks = rank_pids(stage)
    assert ranks < set(stage.processes())
    assert stage.leader is not None
    stage.leader.drop_lifeline()  # as the kernel does when the process is killed
    wait_for(lambda: not ranks & set(stage.processes()))


def test_torchrun_that_cannot_start(stage: Stage) -> None:
    packages = stage.model.parent / "packages" / "torch" / "distributed"
    packages.joinpath("run.py").write_text("raise ImportError('no elastic here')")
    stage.start(HANDLER)
    failure = stage.load()["failure"]
    assert failure["message"].startswith("torchrun has ended with status 1 before all 2 ranks were there")
    assert "no elastic here" in failure["detail"]


def test_without_torch(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", [])
    stage.start(HANDLER)
    failure = stage.load()["failure"]
    assert failure["message"] == "the model's parallelType needs PyTorch's torchrun: install torch for %s" % sys.executable
