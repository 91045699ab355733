from ts.torch_handler.base_handler import BaseHandler


class Script(BaseHandler):
    def preprocess(self, data):
        self.steps = ["preprocess"]
        return super().preprocess(data[0]["body"])

    def inference(self, data):
        self.steps.append("inference")
        return super().inference(data)

    def postprocess(self, data):
        self.steps.append("postprocess")
        out = super().postprocess(data)
        return [{"steps": self.steps, "out": out, "gradient": data.requires_grad, "kind": type(self.model).__name__}]
