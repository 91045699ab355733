"""Built-in handler object_detector: labelled boxes."""

from __future__ import annotations

from torchvision import transforms

from ts.torch_handler.vision_handler import VisionHandler
from ts.utils.util import map_class_to_label

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Dict, List


class ObjectDetector(VisionHandler):
    """Answers each image with a list of {label: box, "score": score}, of the objects whose score is `threshold` or more."""

    image_processing = transforms.Compose([transforms.ToTensor()])
    threshold = 0.5

    def postprocess(self, data: Any) -> List[List[Dict[str, Any]]]:
        """From the model's output: for each image a dict of tensors boxes, labels and scores."""
        return [self._objects(found) for found in data]

    def _objects(self, found: Any) -> List[Dict[str, Any]]:
        wanted = found["scores"] >= self.threshold
        boxes, labels, scores = (found[key][wanted].tolist() for key in ("boxes", "labels", "scores"))
        objects = map_class_to_label([[box] for box in boxes], self.mapping, [[label] for label in labels])
        for entry, score in zip(objects, scores):
            entry["score"] = score
        return objects
