import torch
from ts.torch_handler.base_handler import BaseHandler


class Eager(BaseHandler):
    def preprocess(self, data):
        return torch.tensor([row["body"] for row in data], dtype=torch.float32)

    def postprocess(self, data):
        about = {"model": type(self.model).__name__, "training": self.model.training, "device": str(self.get_device())}
        return [dict(about, out=row) for row in data.tolist()]
