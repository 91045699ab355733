import torch
from ts.torch_handler.base_handler import BaseHandler


class Explained(BaseHandler):
    def initialize(self, context):
        self.device = torch.device("cpu")
        self.model = torch.sum

    def preprocess(self, data):
        return torch.tensor([float(x) for x in data[0].get("data") or data[0].get("body")])

    def postprocess(self, data):
        return [{"sum": data.item(), "explain": self.explain}]

    def get_insights(self, tensor_data, raw, target):
        return [{"weights": (tensor_data / tensor_data.sum()).tolist(), "raw": raw, "target": target, "explain": self.explain}]
