"""ts.launcher: the commands that it runs, and what it makes of a server's output; the server is a small program."""

from __future__ import annotations

import sys
import textwrap
import threading
import types
from pathlib import Path
from typing import Any, Callable, List

import pytest

from ts import launcher

Server = Callable[[str], Path]


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Server:
    """Puts a program in the place of the command torchserve; it writes its arguments to the file that is given back."""

    def put(code: str) -> Path:
        calls = tmp_path / "calls"
        program = tmp_path / "torchserve.py"
        head = "import sys\nopen(%r, 'a').write(' '.join(sys.argv[1:]) + '\\n')\n" % str(calls)
        program.write_text(head + "if '--stop' not in sys.argv:\n" + textwrap.indent(textwrap.dedent(code), "    "))
        monkeypatch.setattr(launcher, "_torchserve", lambda *arguments: [sys.executable, "-u", str(program), *arguments])
        return calls

    return put


def test_start_and_the_lines_after_it(server: Server, capfd: pytest.CaptureFixture[str]) -> None:
    calls = server(
        """
        print("before")
        print("Model server started.")
        print("after")
        """
    )
    before = threading.enumerate()
    lines = launcher.start("store", "config.properties", True, "plugins", True, "m=m.mar", True)
    assert list(iter(lambda: lines.get(timeout=20), None)) == ["after\n"]
    for thread in set(threading.enumerate()) - set(before):  # one of them may still print
        thread.join(20)
    assert calls.read_text().splitlines() == [
        "--stop --foreground",
        "--start --model-store store --plugins-path plugins --ts-config config.properties --models m=m.mar --no-config-snapshots "
        "--disable-token-auth --enable-model-api",
    ]
    assert capfd.readouterr().out == "before\nModel server started.\nafter\n"


def test_a_server_that_does_not_start(server: Server) -> None:
    server("sys.exit('the port is taken')")
    with pytest.raises(RuntimeError, match="the server did not start:\nthe port is taken"):
        launcher.start("store")


def test_nobody_has_to_read_the_lines(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launcher.PrintTillTheEnd, "run", lambda thread: None)  # 5000 lines on the screen help nobody
    server("print('Model server started.\\n' + 'x\\n' * 5000)")
    lines = launcher.start("store")
    got = list(iter(lambda: lines.get(timeout=20), None))
    assert 1000 <= len(got) <= 5001


def test_stop_is_the_command_of_this_installation(monkeypatch: pytest.MonkeyPatch) -> None:
    ran: List[Any] = []
    monkeypatch.setattr(launcher.subprocess, "run", lambda command, check: ran.append(command))
    launcher.stop()
    launcher.stop(wait=False)
    head = [sys.executable, "-m", "flambeau", "torchserve", "--stop"]
    assert ran == [head + ["--foreground"], head]


def test_register_model(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: List[Any] = []
    requests = types.ModuleType("requests")
    requests.post = lambda url, params: asked.append((url, dict(params)))  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "requests", requests)
    launcher.register_model("m", "m.mar")
    wanted = {"model_name": "m", "url": "m.mar", "initial_workers": "1", "synchronous": "true"}
    assert asked == [("http://localhost:8081/models", wanted)]
    monkeypatch.setitem(sys.modules, "requests", None)
    with pytest.raises(ImportError, match="requests"):
        launcher.register_model("m", "m.mar")
