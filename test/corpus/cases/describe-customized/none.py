from ts.torch_handler.base_handler import BaseHandler


class Undescribed(BaseHandler):
    def initialize(self, context):
        pass
