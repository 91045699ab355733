import torch
from ts.torch_handler.base_handler import BaseHandler


class Alone(BaseHandler):
    def preprocess(self, data):
        return torch.tensor([row["body"] for row in data], dtype=torch.float32)

    def inference(self, data):
        return super().inference(data, 2.0, power=2)

    def postprocess(self, data):
        about = {"path": self.model_pt_path, "map": self.map_location, "mapping": self.mapping}
        return [dict(about, out=row) for row in data.tolist()]
