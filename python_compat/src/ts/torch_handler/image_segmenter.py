"""Built-in handler image_segmenter: the class of each pixel."""

from __future__ import annotations

import torch
from torchvision import transforms

from ts.torch_handler.vision_handler import VisionHandler

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, List


class ImageSegmenter(VisionHandler):
    """Answers each image with a list height x width x 2: the best class (as a float) and its probability."""

    image_processing = transforms.Compose(
        [
            transforms.Resize(256),
            transforms.CenterCrop(224),
            transforms.ToTensor(),
            transforms.Normalize(mean=[0.485, 0.456, 0.406], std=[0.229, 0.224, 0.225]),
        ]
    )

    def postprocess(self, data: Any) -> List[Any]:
        """From the model's output, a dict whose "out" has scores (rows x classes x height x width)."""
        probability, best = torch.nn.functional.softmax(data["out"], dim=1).max(dim=1)
        return torch.stack([best.to(probability.dtype), probability], dim=3).tolist()  # type: ignore[no-any-return]
