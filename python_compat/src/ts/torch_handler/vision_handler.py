"""The class that handlers of images derive from."""

from __future__ import annotations

import base64
import io

import torch
from PIL import Image

from ts.handler_utils.timer import timed
from ts.torch_handler.base_handler import BaseHandler

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


class VisionHandler(BaseHandler):
    """Makes a batch of tensors of images. A handler sets `image_processing`: a function from a PIL image to a tensor."""

    image_processing: Any

    @property
    def ig(self) -> Any:
        """captum's IntegratedGradients of the model, made when it is first used: without explanations nobody needs captum."""
        made = vars(self).get("_ig")
        if made is None:
            from captum.attr import IntegratedGradients

            made = self._ig = IntegratedGradients(self.model)
        return made

    @ig.setter
    def ig(self, value: Any) -> None:
        self._ig = value

    def initialize(self, context: Any) -> None:
        """As BaseHandler; lifts PIL's limit on the size of images when the server says so."""
        super().initialize(context)
        if not context.system_properties.get("limit_max_image_pixels"):
            Image.MAX_IMAGE_PIXELS = None

    @timed
    def preprocess(self, data: Any) -> Any:
        """Give one tensor of all rows. A row's "data" or "body" is an image file (as bytes, or base64) or a list of numbers."""
        return torch.stack([self._tensor(row.get("data") or row.get("body")) for row in data]).to(self.device)

    def _tensor(self, image: Any) -> Any:
        if isinstance(image, str):
            image = base64.b64decode(image)
        if isinstance(image, (bytes, bytearray)):
            return self.image_processing(Image.open(io.BytesIO(image)))
        return torch.FloatTensor(image)

    def get_insights(self, tensor_data: Any, _: Any, target: int = 0) -> Any:
        """Attributions of the input to class `target`, as lists."""
        print("input shape", tensor_data.shape)
        return self.ig.attribute(tensor_data, target=target, n_steps=15).tolist()
