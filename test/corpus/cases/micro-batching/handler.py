from ts.handler_utils.micro_batching import MicroBatching
from ts.torch_handler.base_handler import BaseHandler


class Squares(BaseHandler):
    def __init__(self):
        super().__init__()
        self.micro = MicroBatching(self)
        self.handle = self.micro

    def initialize(self, context):
        settings = context.model_yaml_config["micro_batching"]
        self.micro.micro_batch_size = settings["micro_batch_size"]
        self.micro.parallelism = settings["parallelism"]

    def preprocess(self, data):
        return [(row["body"], len(data)) for row in data]

    def inference(self, data):
        return [(number * number, size) for number, size in data]

    def postprocess(self, data):
        parallelism = self.micro.parallelism
        return [{"square": square, "two at most": size <= 2, "parallelism": parallelism} for square, size in data]
