"""Starts a server on free ports in a folder of its own, and stops it."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import time
from pathlib import Path

from kit import client

START_LIMIT = 120.0  # seconds until /ping says healthy
STOP_LIMIT = 60.0  # seconds from SIGTERM to the end
PAUSE = 0.1  # seconds between two looks
APIS = ("inference", "management", "metrics")
KEPT = ("E2E_MARKER",)  # by which the end-to-end tests find what is left running
HIDDEN = ("TS_", "FLAMBEAU_", "PYTHON", "LOG_LOCATION", "METRICS_LOCATION", "TMPDIR", "TEMP", "TMP", "TORCHINDUCTOR_CACHE_DIR")


class ServerError(Exception):
    """A server that cannot be started or stopped; the text says why."""


def free_ports(count: int) -> list[int]:
    """Ports of 127.0.0.1 on which nobody listens at the moment."""
    sockets = [socket.socket() for _ in range(count)]
    try:
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [one.getsockname()[1] for one in sockets]
    finally:
        for one in sockets:
            one.close()


class Server:
    """A server process with one set of settings."""

    def __init__(
        self, name: str, command: list[str], keep_env: list[str], folder: Path, store: Path, settings: dict[str, str]
    ) -> None:
        """`folder` gets the server's files, `store` has the archives; the variables in `keep_env` are passed on."""
        self.name = name
        self.addresses: dict[str, tuple[str, int]] = {}
        self._command = command
        self._keep_env = keep_env
        self._folder = folder
        self._store = store
        self._settings = settings
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start it and wait until it is healthy. Raises ServerError."""
        self._folder.mkdir(parents=True, exist_ok=True)
        for sub in ("tmp", "logs"):
            (self._folder / sub).mkdir(exist_ok=True)
        ports = free_ports(5)
        self.addresses = {api: ("127.0.0.1", port) for api, port in zip(APIS, ports)}
        config = self._folder / "config.properties"
        config.write_text("".join("%s=%s\n" % item for item in self._properties(ports).items()), encoding="utf-8")
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                [*self._command, "--start", "--foreground", "--ncs", "--ts-config", str(config)],
                cwd=self._folder,
                env=self._environment(),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        until = time.monotonic() + START_LIMIT
        while not self.healthy():
            if self._process.poll() is not None or time.monotonic() > until:
                self._kill()
                raise ServerError(
                    "%s did not become healthy; its output is in %s, and ends:\n%s" % (self.name, self.log, self.tail())
                )
            time.sleep(PAUSE)

    def healthy(self) -> bool:
        """Whether it runs and answers a ping."""
        if self._process is None or self._process.poll() is not None:
            return False
        return client.ask({"path": "/ping", "limit": 5}, self.addresses["inference"], []).outcome == "answered"

    def stop(self) -> None:
        """End it, with everything that it started. Raises ServerError when it does not end by itself, or not well."""
        if self._process is None:
            return
        # TorchServe's command waits for Java and passes no signal on; Java ends its workers.
        target = -self._process.pid if self.name == "torchserve" else self._process.pid
        problems = []
        try:
            os.kill(target, signal.SIGTERM)
            status = self._process.wait(STOP_LIMIT)
            if self.name == "flambeau" and status != 0:
                problems.append("ended with status %d after SIGTERM" % status)
        except ProcessLookupError:
            problems.append("had ended before it was told to")
        except subprocess.TimeoutExpired:
            problems.append("still ran %d seconds after SIGTERM" % STOP_LIMIT)
        self._kill()
        self._process = None
        if "WARNING: DATA RACE" in self.log.read_text(encoding="utf-8", errors="replace"):
            problems.append("has a data race")
        if problems:
            raise ServerError(
                "%s %s; its output is in %s, and ends:\n%s" % (self.name, " and ".join(problems), self.log, self.tail())
            )

    @property
    def log(self) -> Path:
        """What the server and its workers wrote to the terminal."""
        return self._folder / "console.log"

    def tail(self, lines: int = 15) -> str:
        """The end of the log."""
        return "\n".join(self.log.read_text(encoding="utf-8", errors="replace").splitlines()[-lines:])

    def _kill(self) -> None:
        assert self._process is not None
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()

    def _properties(self, ports: list[int]) -> dict[str, str]:
        properties = {"%s_address" % api: "http://%s:%d" % self.addresses[api] for api in APIS}
        properties.update(
            grpc_inference_port=str(ports[3]),
            grpc_management_port=str(ports[4]),
            model_store=str(self._store),
            disable_token_authorization="true",
            enable_model_api="true",
            default_workers_per_model="1",
            default_response_timeout="60",
            number_of_gpu="0",
            metrics_mode="prometheus",
            model_metrics_auto_detect="true",
            disable_system_metrics="true",
            batching="torchserve",  # the answers tell who was batched with whom; TorchServe itself knows no such key
        )
        properties.update(self._settings)
        return properties

    def _environment(self) -> dict[str, str]:
        env = {
            name: value
            for name, value in os.environ.items()
            if name in self._keep_env or name in KEPT or not name.startswith(HIDDEN)
        }
        temporary, logs = str(self._folder / "tmp"), str(self._folder / "logs")
        env.update(
            # As in an activated environment: TorchServe looks for torchrun there.
            PATH=os.path.dirname(self._command[0]) + os.pathsep + os.environ.get("PATH", os.defpath),
            TEMP=temporary,
            TMPDIR=temporary,
            LOG_LOCATION=logs,
            METRICS_LOCATION=logs,
            TORCHINDUCTOR_CACHE_DIR=str(self._folder / "torchinductor"),
            PYTHONDONTWRITEBYTECODE="1",
        )
        return env
