"""TorchServe's loop for coroutine handlers. Flambeau's worker has its own: these names say so."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, NoReturn

_INSTEAD = (
    "ts.async_service.AsyncService reads requests from TorchServe's socket, which Flambeau does not have: set "
    "asyncCommunication: true in the model's configuration and write `async def handle`; the worker runs it. To try a handler "
    "without a server: flambeau run"
)


class AsyncService:
    """Keeps a service. Everything else raises RuntimeError, which says what to use instead."""

    def __init__(self, service: Any) -> None:
        self.service = service

    def run(self) -> NoReturn:
        """Raise RuntimeError."""
        raise RuntimeError(_INSTEAD)

    receive_requests = fetch_batches = send_responses = run

    async def call_predict(self, batch: Any) -> NoReturn:
        """Raise RuntimeError."""
        raise RuntimeError(_INSTEAD)
