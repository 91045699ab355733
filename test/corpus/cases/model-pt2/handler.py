import torch
from ts.torch_handler.base_handler import BaseHandler


class Compiled(BaseHandler):
    def initialize(self, context):
        pass

    def handle(self, data, context):
        return [self.attempt(context.model_yaml_config["forms"][row["body"]], context) for row in data]

    def attempt(self, form, context):
        config = context.model_yaml_config
        context.model_yaml_config = {"pt2": form}
        try:
            super().initialize(context)
        except Exception:
            return [form, "refused"]
        finally:
            context.model_yaml_config = config
        return [form, type(self.model).__name__, self.inference(torch.tensor([1.0, 3.0])).tolist()]
