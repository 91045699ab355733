import numpy as np
from ts.torch_handler.base_handler import ONNX_AVAILABLE, BaseHandler, setup_ort_session


class Affine(BaseHandler):
    def preprocess(self, data):
        return np.array(data[0]["body"], dtype=np.float32)

    def inference(self, data):
        again = setup_ort_session(self.model_pt_path, self.map_location)
        return self.model.run(["y"], {"x": data})[0] + again.run(["y"], {"x": data})[0]

    def postprocess(self, data):
        return [{"available": ONNX_AVAILABLE, "model": type(self.model).__name__, "out": data.tolist()}]
