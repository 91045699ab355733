import torch
from ts.torch_handler.base_handler import BaseHandler


class Summer(BaseHandler):
    def __init__(self):
        self.offset = 100
        self.context = None

    def initialize(self, context):
        self.device = torch.device("cpu")
        self.model = lambda batch: batch.sum(dim=1) + self.offset

    def preprocess(self, data):
        return super().preprocess([row["body"] for row in data])

    def postprocess(self, data):
        return [{"sums": super().postprocess(data), "has target": hasattr(self, "target")}]
