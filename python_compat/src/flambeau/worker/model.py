"""A loaded model: its context and entry point, and how one batch is run on it."""

from __future__ import annotations

import logging
import os
import sys

from flambeau.worker import encode, frames, loader, paths, rows
from flambeau.worker.copies import Copies
from flambeau.worker.failure import HIGHEST_STATUS, LOWEST_STATUS, failure_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Callable, Dict, List, Optional, Tuple, Union

    from flambeau.worker.frames import Answer, Failure, Item

    Resolve = Callable[[str, str], Tuple[loader.EntryPoint, loader.Initialize]]
    Result = Union[Answer, Failure]
    Send = Callable[[List[Result]], None]

log = logging.getLogger(__name__)


class Pieces:
    """Where a handler's intermediate answers go while its batch runs; the context has it as `cl_socket`."""

    def __init__(self, send: Callable[[List[Union[Answer, Failure]]], None], encoder: encode.Encoder, size: int) -> None:
        self._send = send
        self._encoder = encoder
        self._size = size
        self._open = True
        self.sent = False  # whether anything went out

    def send_piece(self, values: Any, ids: Dict[int, str], message: str, code: int, context: Any) -> None:
        """Send values[i] to the request of each index in `ids`; with a `code` other than 200, all get an error of that status."""
        if not self._open:
            raise RuntimeError("an intermediate answer came after the handler had returned its last one")
        results: List[Union[Answer, Failure]] = []
        if code == 200:
            results = self._encoder.pieces(values, context, ids, self._size)
        else:
            status = code if LOWEST_STATUS <= code <= HIGHEST_STATUS else 500
            results = [frames.Failure(frames.HANDLER_FAILED, status, message)] * self._size
        self.sent = True
        self._send(results)

    def sendall(self, data: bytes) -> None:
        """TorchServe's context carries a socket here. Raises: its wire format is not spoken."""
        raise RuntimeError(
            "context.cl_socket is not a socket here: send intermediate answers with "
            "ts.handler_utils.utils.send_intermediate_predict_response"
        )

    send = sendall

    def close(self) -> None:
        """Refuse what comes later."""
        self._open = False


class Model:
    """One model in this process."""

    def __init__(self, context: Any, entry: Callable[[Any, Any], Any], encoder: encode.Encoder) -> None:
        self.context = context
        self._entry = entry
        self._encoder = encoder
        self._folder: str = context.system_properties["model_dir"]
        self._copies = Copies(context)
        self.event_loop: Any = None  # for asyncCommunication: true, where run_together runs batches side by side
        self.features: List[str] = []  # of the protocol, for the answer to the load

    @classmethod
    def load(cls, request: Dict[str, Any], resolve: Resolve = loader.resolve) -> Model:
        """Load what a LoadRequest names (docs/protocol.md) into this process. Raises what the handler raises.

        `resolve` finds the handler: the loader's own, or one that looks on.
        """
        model_dir, handler = request["model_dir"], request.get("handler", "")
        paths.apply(model_dir, handler, os.environ)
        for name in paths.shadowed(model_dir):
            log.warning(
                "%s in the model's folder is hidden by one of the same name that is part of Python or the server, or loaded "
                "already; an import will give that one: rename the file",
                name,
            )
        context = _context(request)
        entry, initialize = resolve(handler, model_dir)
        _prepare_torch()
        if request.get("envelope"):
            entry = loader.wrap(entry, request["envelope"])
        model = cls(context, entry, encode.Encoder(int(request.get("max_response_bytes") or 0)))
        if (context.model_yaml_config or {}).get("asyncCommunication") is True:
            from flambeau.worker import eventloop

            model.event_loop = eventloop.current()
            initialize(context)
            model.event_loop = eventloop.current(model.event_loop)
            model._promise_concurrency(eventloop.is_coroutine_function(entry))
        else:
            initialize(context)
        _prepare_torch()
        return model

    def run(self, items: List[Item], send: Send) -> List[Result]:
        """Run a batch and give its results; `send` takes the results of each intermediate piece.

        Raises only what ends the process: SystemExit and KeyboardInterrupt.
        """
        if self.event_loop is not None:
            return self.event_loop.run_until_complete(self.run_together(items, send))  # type: ignore[no-any-return]
        size = len(items)
        pieces = Pieces(send, self._encoder, size)
        try:
            data = _set_batch(self.context, items, pieces)
            returned = self._entry(data, self.context)
            return self._encoder.results(returned, self.context, size, pieces.sent, len(data))
        except (SystemExit, KeyboardInterrupt):
            raise
        except BaseException as err:
            return [failure_of(err, self._folder)] * size
        finally:
            pieces.close()

    async def run_together(self, items: List[Item], send: Send) -> List[Result]:
        """Run a batch as `run` does, but beside others: on the event loop, and with a context of its own."""
        size = len(items)
        pieces = Pieces(send, self._encoder, size)
        try:
            context = self._copies.new()
            data = _set_batch(context, items, pieces)
            returned = self._entry(data, context)
            if hasattr(returned, "__await__"):
                returned = await returned
            return self._encoder.results(returned, context, size, pieces.sent, len(data))
        except (SystemExit, KeyboardInterrupt):
            raise
        except BaseException as err:
            return [failure_of(err, self._folder)] * size
        finally:
            pieces.close()

    def _promise_concurrency(self, coroutine: bool) -> None:
        if coroutine:
            self.features.append(frames.CONCURRENT)
        else:
            log.warning(
                "asyncCommunication is true, but the handler's handle is no coroutine function, so its requests run one after "
                "another: write `async def handle`, or leave the setting out"
            )


def _set_batch(context: Any, items: List[Item], pieces: Pieces) -> List[Dict[str, Any]]:
    """Tell the context about a batch, and give its rows."""
    from ts.context import RequestProcessor

    data, headers = rows.make_rows(items, rows.decode_wanted(os.environ))
    for item in items:
        item.parts = []  # the payloads are the rows' now; nothing may hold on to the frame
    ids = {index: item.id for index, item in enumerate(items)}
    context.request_ids = ids
    context.request_processor = [RequestProcessor.until(header, item.deadline) for header, item in zip(headers, items)]
    context.metrics.request_ids = ids
    context.cl_socket = pieces
    return data


def _context(request: Dict[str, Any]) -> Any:
    import ts
    from ts.context import Context
    from ts.utils.util import get_yaml_config

    model_dir = request["model_dir"]
    manifest = loader.read_manifest(model_dir)
    config_file = (manifest.get("model") or {}).get("configFile") if manifest else None
    config = get_yaml_config(os.path.join(model_dir, config_file)) if config_file else {}
    return Context(
        request["model_name"],
        model_dir,
        manifest,
        request.get("batch_size", 1),
        request.get("gpu"),
        ts.__version__,
        bool(request.get("limit_max_image_pixels", True)),
        _metrics(request["model_name"]),
        config,
    )


def _metrics(model_name: str) -> Any:
    from ts.metrics.metric_cache_yaml_impl import MetricsCacheYamlImpl

    path = os.environ.get("FLAMBEAU_METRICS_CONFIG") or os.path.join(_ts_dir(), "configs", "metrics.yaml")
    cache = MetricsCacheYamlImpl(path)
    cache.initialize_cache()
    cache.model_name = model_name
    cache.set_request_ids(_random_id())  # as on TorchServe, what is measured while loading has a request id of its own
    return cache


def _ts_dir() -> str:
    import ts

    return os.path.dirname(os.path.abspath(ts.__file__))


def _random_id() -> str:
    """A version 4 UUID; the uuid module is not worth its import."""
    raw = bytearray(os.urandom(16))
    raw[6] = raw[6] & 0x0F | 0x40
    raw[8] = raw[8] & 0x3F | 0x80
    text = raw.hex()
    return "-".join((text[:8], text[8:12], text[12:16], text[16:20], text[20:]))


def _prepare_torch() -> None:
    """Make TorchServe's settings for torch once a handler that builds on BaseHandler has imported torch."""
    base_handler: Optional[Any] = sys.modules.get("ts.torch_handler.base_handler")
    if base_handler is not None and "torch" in sys.modules:
        base_handler.prepare_torch()
