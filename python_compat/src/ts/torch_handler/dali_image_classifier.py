"""The built-in handler dali_image_classifier: names what is in an image that DALI has read."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from ts.torch_handler.dali_handler import DALIHandler
from ts.utils.util import map_class_to_label

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, List


class DALIImageClassifier(DALIHandler):
    """Answers with the `topk` most likely classes and their probabilities."""

    topk = 5

    def set_max_result_classes(self, topk: int) -> None:
        """Set how many classes are answered."""
        self.topk = topk

    def get_max_result_classes(self) -> int:
        """How many classes are answered."""
        return self.topk

    def postprocess(self, data: Any) -> List[Any]:
        """From scores to a dict label -> probability for each row."""
        probabilities, classes = torch.topk(F.softmax(data, dim=1), self.topk, dim=1)
        return map_class_to_label(probabilities.tolist(), self.mapping, classes.tolist())
