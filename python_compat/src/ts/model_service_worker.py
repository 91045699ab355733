"""TorchServe's worker. Flambeau's server starts a worker of its own: these names say so."""

from __future__ import annotations

import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Optional

DEBUG = False
BENCHMARK = os.getenv("TS_BENCHMARK") in ("True", "true", "TRUE")
LOCAL_RANK = int(os.getenv("LOCAL_RANK", "0"))
WORLD_SIZE = int(os.getenv("WORLD_SIZE", "0"))
WORLD_RANK = int(os.getenv("RANK", "0"))
LOCAL_WORLD_SIZE = int(os.getenv("LOCAL_WORLD_SIZE", "0"))

_INSTEAD = (
    "ts.model_service_worker is TorchServe's worker, whose socket Flambeau does not have: the server starts its own workers. To "
    "run a handler without a server: flambeau run MODEL --input FILE; from Python: ts.model_loader.ModelLoaderFactory"
)


class TorchModelServiceWorker:
    """Cannot be made here."""

    def __init__(
        self,
        s_type: Optional[str] = None,
        s_name: Optional[str] = None,
        host_addr: Optional[str] = None,
        port_num: Optional[int] = None,
        metrics_config: Optional[str] = None,
        async_comm: Optional[bool] = False,
    ) -> None:
        """Raise RuntimeError, which says what to use instead."""
        raise RuntimeError(_INSTEAD)

    def load_model(self, load_model_request: Any) -> Any:
        """Of TorchServe's class; never reached."""

    def handle_connection(self, cl_socket: Any) -> Any:
        """Of TorchServe's class; never reached."""

    def handle_connection_async(self, cl_socket: Any) -> Any:
        """Of TorchServe's class; never reached."""

    def run_server(self) -> Any:
        """Of TorchServe's class; never reached."""


if __name__ == "__main__":
    sys.exit(_INSTEAD)
