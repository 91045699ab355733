"""Takes the server's jobs to the ranks of a model, and what they answer back to the server."""

from __future__ import annotations

import json
import threading
import time

from flambeau.parallel.link import Message
from flambeau.worker.library import BATCH, LOAD, UNLOAD

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Callable, Dict, List, Optional, Sequence, Set

    from flambeau.parallel.link import Link
    from flambeau.worker.library import Job
    from flambeau.worker.loop import Transport


class Relay:
    """Every rank loads and unloads; batches go to each of them, or to rank 0 alone. Rank 0 answers the batches."""

    def __init__(self, transport: Transport, links: Sequence[Link], every_rank: bool, lost: Callable[[str, str], None]) -> None:
        """`links` has one for each rank, by number. `lost` is called when nothing can be relayed any more: who did what."""
        self._transport = transport
        self._links = list(links)
        self._every_rank = every_rank
        self._lost = lost
        self._readers: List[threading.Thread] = []
        self._lock = threading.Lock()  # guards the rest
        self._load: Optional[int] = None  # the id of the load, while it is not answered
        self._loaded: Dict[int, Any] = {}  # answers to it, by rank
        self._unloaded: Set[int] = set()

    def begin(self, load: Job) -> None:
        """Let all the ranks load, and read what they answer from now on, in a thread for each. The threads end with the links."""
        with self._lock:
            self._load = load.id
        self.send(load)
        for rank in range(len(self._links)):
            reader = threading.Thread(target=self._read, args=(rank,), name="flambeau-rank-%d" % rank, daemon=True)
            self._readers.append(reader)
            reader.start()

    def send(self, job: Job) -> None:
        """Give a job to the ranks that it is for."""
        message = Message(job.kind, job.id, job.data)
        for rank, link in enumerate(self._links):
            if rank > 0 and job.kind == BATCH and not self._every_rank:
                break
            try:
                link.send(message)
            except OSError:
                return  # its reader finds out, and tells

    @property
    def loaded(self) -> bool:
        """Whether all the ranks have loaded the model."""
        with self._lock:
            return len(self._loaded) == len(self._links) and not any(answer.get("failure") for answer in self._loaded.values())

    def fail_load(self, message: str, detail: str) -> bool:
        """Answer the load that is under way with a failure; False when there is none."""
        with self._lock:
            load, self._load = self._load, None
        if load is None:
            return False
        self._transport.give(load, failed_load(message, detail), True)
        return True

    def finish(self, limit: float) -> bool:
        """Have the ranks end, and wait until they have, for `limit` seconds at most; gives whether they have."""
        for link in self._links:
            link.finish()
        end = time.monotonic() + limit
        for reader in self._readers:
            reader.join(max(0.0, end - time.monotonic()))
        return not any(reader.is_alive() for reader in self._readers)

    def _read(self, rank: int) -> None:
        try:
            message = self._links[rank].receive()
            while message is not None:
                self._answer(rank, message)
                message = self._links[rank].receive()
        except Exception as err:
            self._lost("rank %d" % rank, "gave an answer that cannot be passed on (%s: %s)" % (type(err).__name__, err))
            return
        self._lost("rank %d" % rank, "has ended")

    def _answer(self, rank: int, message: Message) -> None:
        if message.kind == BATCH:
            if rank == 0:
                self._transport.give(message.id, bytes(message.data), message.last)
        elif message.kind == LOAD:
            self._answer_load(rank, message)
        elif message.kind == UNLOAD:
            with self._lock:
                self._unloaded.add(rank)
                whole = len(self._unloaded) == len(self._links)
            if whole:
                self._transport.give(message.id, b"", True)
        else:
            raise RuntimeError("unknown kind of answer: %d" % message.kind)

    def _answer_load(self, rank: int, message: Message) -> None:
        """The first failure answers at once: the other ranks may be waiting for that one, for ever."""
        answer = json.loads(bytes(message.data))
        failure = answer.get("failure")
        if failure:
            failure["message"] = "rank %d: %s" % (rank, failure["message"])
        with self._lock:
            self._loaded[rank] = answer
            if self._load != message.id or not (failure or len(self._loaded) == len(self._links)):
                return
            self._load = None
            if not failure:
                answer = self._loaded[0]
        self._transport.give(message.id, json.dumps(answer).encode("utf-8"), True)


def failed_load(message: str, detail: str) -> bytes:
    """The answer to a load that failed before a handler could say why."""
    return json.dumps({"failure": {"message": message, "detail": detail, "out_of_memory": False}}).encode("utf-8")
