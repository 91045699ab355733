import copy

from ts.torch_handler.base_handler import BaseHandler


class Tries(BaseHandler):
    def initialize(self, context):
        pass

    def handle(self, data, context):
        return [self.attempt(row["body"], context) for row in data]

    def attempt(self, model, context):
        manifest = copy.copy(context.manifest)
        context.manifest = {"model": model}
        try:
            super().initialize(context)
            return "loaded"
        except Exception:
            return "refused"
        finally:
            context.manifest = manifest
