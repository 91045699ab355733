"""The class that handlers of images with NVIDIA DALI derive from; needs nvidia-dali and numpy."""

from __future__ import annotations

import numpy as np
import torch

from ts.handler_utils.preprocess.dali import get_dali_pipeline
from ts.torch_handler.vision_handler import VisionHandler

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, List


class DALIHandler(VisionHandler):
    """Makes a batch of tensors of images with the model's own DALI pipeline."""

    def initialize(self, context: Any) -> None:
        """As VisionHandler, then the pipeline of the model's configuration."""
        super().initialize(context)
        self.initialized = True
        self.pipeline = get_dali_pipeline(context)

    def preprocess(self, data: List[Any]) -> Any:
        """Give one tensor of all rows. A row's "data" or "body" is an image file, as bytes, or what the pipeline takes."""
        images = [row.get("data") or row.get("body") for row in data]
        images = [np.frombuffer(one, dtype=np.uint8) if isinstance(one, (bytes, bytearray)) else one for one in images]
        output = self.pipeline.run(source=images)[0]
        return torch.stack([torch.tensor(output.at(index)) for index in range(len(output))]).to(self.device)
