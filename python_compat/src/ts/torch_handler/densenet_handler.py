"""Built-in handler densenet_handler: tensors in, one tensor out."""

from __future__ import annotations

import importlib
import io
import os
import time

import torch

from ts.utils.util import list_classes_from_module

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, List


class DenseNetHandler:
    """Each row's "data" or "body" is a tensor as torch.save writes it. The answer is a list of one tensor, for all rows."""

    def __init__(self) -> None:
        self.model: Any = None
        self.device: Any = None
        self.initialized = False
        self.context: Any = None
        self.manifest: Any = None
        self.map_location: Any = None

    def initialize(self, context: Any) -> None:
        """Load the model: with a modelFile its one class and the state dict, else TorchScript. RuntimeError without the file."""
        properties = context.system_properties
        gpu, model_dir = properties.get("gpu_id"), properties.get("model_dir")
        on_gpu = gpu is not None and torch.cuda.is_available()
        self.map_location = "cuda" if on_gpu else "cpu"
        self.device = torch.device("cuda:%s" % gpu if on_gpu else "cpu")
        self.manifest = context.manifest
        path = os.path.join(model_dir, self.manifest["model"]["serializedFile"])
        if not os.path.isfile(path):
            raise RuntimeError("Missing the model.pt file: there is no %s" % path)
        model_file = self.manifest["model"].get("modelFile", "")
        if model_file:
            self.model = self._load_pickled_model(model_dir, model_file, path)
        else:
            self.model = self._load_torchscript_model(path)
        self.model.to(self.device)
        self.model.eval()
        self.initialized = True

    def _load_torchscript_model(self, model_pt_path: str) -> Any:
        return torch.jit.load(model_pt_path, map_location=self.map_location)

    def _load_pickled_model(self, model_dir: str, model_file: str, model_pt_path: str) -> Any:
        if not os.path.isfile(os.path.join(model_dir, model_file)):
            raise RuntimeError("Missing the model.py file: there is no %s in %s" % (model_file, model_dir))
        classes = list_classes_from_module(importlib.import_module(model_file.split(".", maxsplit=1)[0]))
        if len(classes) != 1:
            raise ValueError("Expected only one class as model definition. %s" % classes)
        model = classes[0]()
        model.load_state_dict(torch.load(model_pt_path, map_location=self.map_location))
        return model

    def inference(self, data: Any, *args: Any, **kwargs: Any) -> Any:
        """Call the model with a tensor, without gradients."""
        with torch.no_grad():
            return self.model(data.to(self.device), *args, **kwargs)

    def handle(self, data: Any, context: Any) -> List[Any]:
        """Answer a batch; reports its time as metric HandlerTime."""
        begun = time.time()
        self.context = context
        tensors = [torch.load(io.BytesIO(row.get("data") or row.get("body"))) for row in data]
        result = self.inference(torch.stack(tensors))
        context.metrics.add_time("HandlerTime", round((time.time() - begun) * 1000, 2), None, "ms")
        return [result]
