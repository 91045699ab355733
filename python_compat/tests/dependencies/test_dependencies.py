"""The program that installs requirements, as the server runs it. What the server makes of it is tested in plugins/python/deps."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Dict, List

import pytest

import flambeau

SCRIPT = os.path.join(os.path.dirname(os.path.abspath(flambeau.__file__)), "dependencies.py")
LIMIT = 60  # seconds
# Gives the rest of the command line a descriptor as number 3.
AS_THREE = "import os, sys; os.dup2(int(sys.argv[1]), 3); os.execv(sys.executable, [sys.executable, *sys.argv[2:]])"


def environ(**more: str) -> Dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("PIP_", "PYTHON"))}
    return {**kept, "PIP_CONFIG_FILE": os.devnull, **more}


def identify(env: Dict[str, str]) -> Dict[str, List[str]]:
    found: Dict[str, List[str]] = json.loads(subprocess.check_output([sys.executable, SCRIPT, "identify"], env=env))
    return found


def test_identity_has_the_settings_that_matter(tmp_path: Path) -> None:
    config = tmp_path / "pip.conf"
    config.write_text("[global]\nindex-url = http://a/\ntimeout = 7\n[install]\nno-binary = tiny\n")
    found = identify(environ(PIP_CONFIG_FILE=str(config), PIP_NO_INDEX="1", PIP_RETRIES="3"))
    names = [line.partition("=")[0].rpartition(".")[2] for line in found["settings"]]
    assert sorted(names) == ["index-url", "no-binary", "no-index"]
    assert found["python"] == sys.version


def test_a_broken_configuration_is_left_to_the_installation(tmp_path: Path) -> None:
    config = tmp_path / "pip.conf"
    config.write_text("[global\n")
    assert identify(environ(PIP_CONFIG_FILE=str(config)))["settings"] == []


def test_it_ends_with_the_server(tmp_path: Path) -> None:
    """pip waits for an index that never answers; then the other end of the lifeline is closed, as by a server that is killed."""
    (tmp_path / "requirements.txt").write_text("tiny\n")
    (tmp_path / "part").mkdir()
    lifeline, server = os.pipe()
    with socket.create_server(("127.0.0.1", 0)) as index:
        index.settimeout(LIMIT)
        arguments = [SCRIPT, "packages", "part", "whole", "requirements.txt"]
        pip = subprocess.Popen(
            [sys.executable, "-c", AS_THREE, str(lifeline), *arguments],
            cwd=str(tmp_path),
            env=environ(PIP_INDEX_URL="http://127.0.0.1:%d/simple" % index.getsockname()[1], PIP_TIMEOUT="600"),
            pass_fds=[lifeline],
            start_new_session=True,
        )
        os.close(lifeline)
        try:
            connection, _ = index.accept()
            with connection:
                assert pip.poll() is None
                os.close(server)
                assert pip.wait(LIMIT) == -9
        finally:
            pip.kill()
            pip.wait()


@pytest.mark.parametrize(
    "command", [["packages", "part", "whole", "requirements.txt"], ["venv", "part", "whole", "requirements.txt"]]
)
def test_pips_status_is_its_own(tmp_path: Path, command: List[str]) -> None:
    (tmp_path / "requirements.txt").write_text("tiny==9.9\n")
    (tmp_path / "part").mkdir()
    command[1] = str(tmp_path / "part")
    done = subprocess.run(
        [sys.executable, SCRIPT, *command],
        cwd=str(tmp_path),
        env=environ(PIP_NO_INDEX="1"),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=LIMIT,
    )
    assert done.returncode == 1
    assert "No matching distribution found for tiny==9.9" in done.stdout
