"""What the two sides of the process border must agree on, read from the other side's source."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Dict

from flambeau.worker import frames, library, logs, process

ROOT = Path(__file__).parents[3]


def constants(path: str) -> Dict[str, str]:
    """Constants of a Go file with a literal value."""
    source = (ROOT / path).read_text(encoding="utf-8")
    return dict(re.findall(r"^\s*(?:const )?(\w+)\s*(?:\w+\s*)?=\s*(\"[^\"]*\"|'[^']*'|\d+)", source, flags=re.MULTILINE))


def test_handshake() -> None:
    go = constants("proto/backend/v1/handshake.go")
    assert go["CookieKey"] == '"%s"' % process.COOKIE
    private = {'"%s"' % name for name in process._PRIVATE_VARIABLES}
    assert {go["EnvMaxMessageBytes"], go["EnvProtocolVersions"], go["EnvSocketDir"]} <= private
    assert (go["LifelineFD"], go["StdoutFD"]) == (str(process.LIFELINE_FD), str(process.LOG_FD))
    assert go["MarkerPrefix"] == "'\\x1e'"
    assert logs.Scope().marker("").startswith(b"\x1e")
    assert go["FeatureConcurrent"] == '"%s"' % frames.CONCURRENT


def test_frames() -> None:
    text = (ROOT / "docs/protocol.md").read_text(encoding="utf-8")
    kinds = {name: int(number) for number, name in re.findall(r"^\| (\d) (\w+) \| to the", text, flags=re.MULTILINE)}
    assert (kinds["batch"], kinds["results"], kinds["piece"]) == (frames.BATCH, frames.RESULTS, frames.PIECE)
    for reason in (
        frames.HANDLER_FAILED,
        frames.OUT_OF_MEMORY,
        frames.INVALID_OUTPUT,
        frames.RESPONSE_TOO_LARGE,
        frames.INTERNAL,
    ):
        assert "`%s`" % reason in text
    said = re.search(r"kind: (\d) load, (\d) batch, (\d) unload, (\d) stop", text)
    assert said is not None
    assert tuple(map(int, said.groups())) == (library.LOAD, library.BATCH, library.UNLOAD, library.STOP)
