"""Built-in handler image_classifier: labels of an image with their probabilities."""

from __future__ import annotations

import torch
from torchvision import transforms

from ts.handler_utils.timer import timed
from ts.torch_handler.vision_handler import VisionHandler
from ts.utils.util import map_class_to_label

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Dict, List


class ImageClassifier(VisionHandler):
    """Answers each image with a dict label -> probability of its `topk` best classes."""

    topk = 5
    # What ImageNet's models are trained with.
    image_processing = transforms.Compose(
        [
            transforms.Resize(256),
            transforms.CenterCrop(224),
            transforms.ToTensor(),
            transforms.Normalize(mean=[0.485, 0.456, 0.406], std=[0.229, 0.224, 0.225]),
        ]
    )

    def set_max_result_classes(self, topk: int) -> None:
        """Set how many classes an answer has."""
        self.topk = topk

    def get_max_result_classes(self) -> int:
        """How many classes an answer has."""
        return self.topk

    @timed
    def postprocess(self, data: Any) -> List[Dict[str, float]]:
        """From the model's scores (rows x classes)."""
        best = torch.topk(torch.nn.functional.softmax(data, dim=1), self.topk, dim=1)
        return map_class_to_label(best.values.tolist(), self.mapping, best.indices.tolist())
