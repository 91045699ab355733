"""A loaded model: its context and entry point, and how one batch is run on it."""

from __future__ import annotations

import logging
import os
import sys

from flambeau.worker import encode, frames, loader, paths, rows
from flambeau.worker.failure import HIGHEST_STATUS, LOWEST_STATUS, failure_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Callable, Dict, List, Optional, Union

    from flambeau.worker.frames import Answer, Failure, Item

log = logging.getLogger(__name__)


class Pieces:
    """Where a handler's intermediate answers go while its batch runs; the context has it as `cl_socket`."""

    def __init__(self, send: Callable[[bytes], None], encoder: encode.Encoder, batch_id: int, size: int) -> None:
        self._send = send
        self._encoder = encoder
        self._batch_id = batch_id
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
        self._send(frames.encode_results(frames.PIECE, self._batch_id, results))

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
        self._loop: Any = None

    @classmethod
    def load(cls, request: Dict[str, Any]) -> Model:
        """Load what a LoadRequest names (docs/protocol.md) into this process. Raises what the handler raises."""
        model_dir, handler = request["model_dir"], request.get("handler", "")
        paths.apply(model_dir, handler, os.environ)
        for name in paths.shadowed(model_dir):
            log.warning(
                "%s in the model's folder is hidden by a module of the same name that is part of Python or loaded already; "
                "an import will give that one: rename the file",
                name,
            )
        context = _context(request)
        entry, initialize = loader.resolve(handler, model_dir)
        _prepare_torch()
        if request.get("envelope"):
            entry = loader.wrap(entry, request["envelope"])
        model = cls(context, entry, encode.Encoder(int(request.get("max_response_bytes") or 0)))
        if (context.model_yaml_config or {}).get("asyncCommunication") is True:
            model._use_event_loop()
        initialize(context)
        _prepare_torch()
        return model

    def run(self, batch_id: int, items: List[Item], send: Callable[[bytes], None]) -> List[Union[Answer, Failure]]:
        """Run a batch and give its results. Raises only what ends the process: SystemExit and KeyboardInterrupt."""
        size = len(items)
        pieces = Pieces(send, self._encoder, batch_id, size)
        try:
            data = self._set_batch(items, pieces)
            returned = self._entry(data, self.context)
            if self._loop is not None:
                returned = self._loop.run_until_complete(returned)
            return self._encoder.results(returned, self.context, size, pieces.sent)
        except (SystemExit, KeyboardInterrupt):
            raise
        except BaseException as err:
            return [failure_of(err, self._folder)] * size
        finally:
            pieces.close()

    def _set_batch(self, items: List[Item], pieces: Pieces) -> List[Dict[str, Any]]:
        from ts.context import RequestProcessor

        data, headers = rows.make_rows(items, rows.decode_wanted(os.environ))
        for item in items:
            item.parts = []  # the payloads are the rows' now; nothing may hold on to the frame
        context = self.context
        ids = {index: item.id for index, item in enumerate(items)}
        context.request_ids = ids
        context.request_processor = [RequestProcessor(header) for header in headers]
        context.metrics.request_ids = ids
        context.cl_socket = pieces
        return data

    def _use_event_loop(self) -> None:
        """For handlers whose `handle` is a coroutine function (asyncCommunication: true in the model's configuration)."""
        import asyncio

        self._loop = asyncio.new_event_loop()
        asyncio.set_event_loop(self._loop)


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
