"""A context for tests of handlers."""

from __future__ import annotations

import os
import uuid

from ts.metrics.metrics_store import MetricsStore
from ts.utils.util import get_yaml_config

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Dict, Optional


class MockContext:
    """What a handler's initialize and handle ask of a context. Set `explain` to have explanations asked for."""

    def __init__(
        self,
        model_pt_file: Optional[str] = "model.pt",
        model_dir: str = "ts/torch_handler/unit_tests/models/tmp",
        model_file: Optional[str] = "model.py",
        gpu_id: Optional[str] = "0",
        model_name: str = "mnist",
        model_yaml_config_file: Optional[str] = None,
    ) -> None:
        files = {"serializedFile": model_pt_file, "modelFile": model_file}
        self.manifest = {"model": {key: name for key, name in files.items() if name}}
        self.system_properties = {"model_dir": model_dir}
        if gpu_id and _gpu():
            self.system_properties["gpu_id"] = gpu_id
        self.explain = False
        self.metrics = MetricsStore(uuid.uuid4(), model_name)
        config = get_yaml_config(os.path.join(model_dir, model_yaml_config_file)) if model_yaml_config_file else {}
        self.model_yaml_config: Dict[str, Any] = config

    def get_request_header(self, idx: int, exp: Any) -> bool:
        """True for every header of every row but the first while `explain` is set, else False."""
        return bool(idx and exp and self.explain)


def _gpu() -> bool:
    try:
        import torch
    except ImportError:
        return False
    return bool(torch.cuda.is_available())
