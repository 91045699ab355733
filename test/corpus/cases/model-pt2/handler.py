import torch
from ts.torch_handler.base_handler import BaseHandler


class Compiled(BaseHandler):
    def preprocess(self, data):
        return torch.tensor([row["body"] for row in data], dtype=torch.float32)

    def postprocess(self, data):
        pt2 = self.model_yaml_config.get("pt2")
        return [{"model": type(self.model).__name__, "pt2": pt2, "out": row} for row in data.tolist()]
