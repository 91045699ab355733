"""The command lines of TorchServe as argparse has them. Flambeau's own commands read theirs in the server's binary."""

from __future__ import annotations

import argparse

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Optional, Sequence


class ArgParser:
    """Makes parsers."""

    @staticmethod
    def ts_parser() -> argparse.ArgumentParser:
        """The parser of the command torchserve."""
        parser = argparse.ArgumentParser(prog="torchserve", description="Torchserve")
        verbs = parser.add_mutually_exclusive_group(required=False)
        verbs.add_argument("-v", "--version", action="store_true", help="print the version")
        verbs.add_argument("--start", action="store_true", help="start the server")
        verbs.add_argument("--stop", action="store_true", help="stop the server")
        for name, about in (
            ("--ts-config", "configuration file of the server"),
            ("--model-store", "folder with the model archives"),
            ("--workflow-store", "folder with the workflow archives"),
            ("--log-config", "Log4j configuration file"),
            ("--cpp-log-config", "log configuration of C++ workers"),
        ):
            parser.add_argument(name, help=about)
        parser.add_argument("--models", nargs="+", metavar="MODEL_PATH1 MODEL_NAME=MODEL_PATH2...", help="models to load")
        parser.add_argument("--foreground", action="store_true", help="stay in the foreground")
        parser.add_argument(
            "--no-config-snapshots", "--ncs", dest="no_config_snapshots", action="store_true", help="write no snapshots"
        )
        parser.add_argument("--plugins-path", "--ppath", dest="plugins_path", help="folder with plugins")
        parser.add_argument("--disable-token-auth", "--dt", dest="token_auth", action="store_true", help="serve without keys")
        parser.add_argument("--enable-model-api", dest="model_mode", action="store_true", help="allow models to be registered")
        return parser

    @staticmethod
    def model_service_worker_args() -> argparse.ArgumentParser:
        """The parser of TorchServe's worker. Flambeau's worker has no command line."""
        parser = argparse.ArgumentParser(prog="model-server-worker", description="Model Server Worker")
        parser.add_argument("--sock-type", required=True, choices=["unix", "tcp"], help="kind of socket")
        parser.add_argument("--sock-name", help="path of a unix socket")
        parser.add_argument("--host", help="address of a TCP socket")
        parser.add_argument("--port", help="port of a TCP socket")
        parser.add_argument("--metrics-config", help="file with the metrics")
        parser.add_argument("--async", dest="async_comm", default=False, action="store_true", help="coroutine handlers")
        return parser

    @staticmethod
    def extract_args(args: Optional[Sequence[str]] = None) -> argparse.Namespace:
        """Parse `args`, or the arguments of this process, as the command torchserve does."""
        return ArgParser.ts_parser().parse_args(args or None)
