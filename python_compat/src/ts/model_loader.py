"""Loads a model into a Service, for code that does without a server."""

from __future__ import annotations

import uuid

from ts.service import Service

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Optional


class ModelLoader:
    """What a loader offers."""

    def load(
        self,
        model_name: str,
        model_dir: str,
        handler: Optional[str] = None,
        gpu_id: Optional[int] = None,
        batch_size: Optional[int] = None,
        envelope: Optional[str] = None,
        limit_max_image_pixels: Optional[bool] = True,
    ) -> Any:
        """Load the model in folder `model_dir`."""
        raise NotImplementedError


class TsModelLoader(ModelLoader):
    """Loads what Flambeau's worker loads, in the same way. `model_dir` has to be on sys.path."""

    def load(
        self,
        model_name: str,
        model_dir: str,
        handler: Optional[str] = None,
        gpu_id: Optional[int] = None,
        batch_size: Optional[int] = None,
        envelope: Optional[str] = None,
        limit_max_image_pixels: Optional[bool] = True,
        metrics_cache: Any = None,
    ) -> Service:
        """Import the handler, initialize it, and give it as a Service. Raises what the handler raises."""
        from flambeau.worker import loader

        if metrics_cache is not None:
            metrics_cache.set_request_ids(str(uuid.uuid4()))
        entry_point, initialize = loader.resolve(handler or "", model_dir)
        if envelope is not None:
            entry_point = loader.wrap(entry_point, envelope)
        manifest = loader.read_manifest(model_dir)
        service = Service(
            model_name,
            model_dir,
            manifest,
            entry_point,
            gpu_id,
            batch_size,  # type: ignore[arg-type]
            bool(limit_max_image_pixels),
            metrics_cache,
        )
        initialize(service.context)
        return service


class ModelLoaderFactory:
    """Where loaders come from."""

    @staticmethod
    def get_model_loader() -> TsModelLoader:
        """The one loader that there is."""
        return TsModelLoader()
