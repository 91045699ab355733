"""What `flambeau run` is asked to do: a JSON object from the command, over a descriptor."""

from __future__ import annotations

import json
import os
import sys

from flambeau.worker.frames import Item

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Dict, List, Tuple

JOB_FD = 3


class InputError(Exception):
    """The input cannot be read."""


class Job:
    """One request, and how often it is to be made.

    The object has: load (the fields of LoadRequest, docs/protocol.md); headers, a list of [name, value]; parts, a list of objects
    with name, content_type, and text or file ("-" for stdin); batch and repeat; debugger, json and head (booleans); unpack, the
    seconds that opening the model took; started, the Unix time in seconds at which this process was started.
    """

    def __init__(self, said: Dict[str, Any]) -> None:
        self.load: Dict[str, Any] = said["load"]
        self.batch: int = said["batch"]
        self.repeat: int = said["repeat"]
        self.debugger: bool = said["debugger"]
        self.json: bool = said["json"]
        self.head: bool = said["head"]
        self.unpack: float = said["unpack"]
        self.started: float = said["started"]
        self._headers: List[Tuple[str, str]] = [(name, value) for name, value in said["headers"]]
        self._parts: List[Dict[str, str]] = said["parts"]
        self._payloads: List[Tuple[str, str, bytes]] = []

    def read_input(self) -> None:
        """Read the files of the request. Raises InputError."""
        self._payloads = [(part["name"], part["content_type"], _payload(part)) for part in self._parts]

    def items(self, run: int) -> List[Item]:
        """The batch of the run with this number; each item has a request id of its own."""
        length = ("content-length", str(sum(len(data) for _, _, data in self._payloads)))
        return [
            Item(
                "run-%d-%d" % (run, index),
                0,
                self._headers + [length],
                [(name, kind, memoryview(data)) for name, kind, data in self._payloads],
            )
            for index in range(self.batch)
        ]


def take() -> Job:
    """Read the job that the command has sent."""
    with os.fdopen(JOB_FD, "rb") as file:
        return Job(json.loads(file.read().decode("utf-8")))


def _payload(part: Dict[str, str]) -> bytes:
    if "file" not in part:
        return part["text"].encode("utf-8", "surrogateescape")
    try:
        if part["file"] == "-":
            return sys.stdin.buffer.read()
        with open(part["file"], "rb") as file:
            return file.read()
    except OSError as err:
        raise InputError("%s cannot be read: %s" % (part["file"], err.strerror)) from err
