from ts.torch_handler.base_handler import BaseHandler


class Described(BaseHandler):
    def initialize(self, context):
        self.name = context.model_name

    def describe_handle(self):
        return {"name": self.name, "inputs": [{"name": "größe", "shape": [1, 2]}]}
