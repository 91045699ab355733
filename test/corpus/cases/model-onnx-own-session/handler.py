import os

import numpy as np
import onnxruntime


class Affine:
    def initialize(self, context):
        path = os.path.join(context.system_properties["model_dir"], context.manifest["model"]["serializedFile"])
        self.session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])

    def handle(self, data, context):
        inputs = self.session.get_inputs()
        answers = []
        for row in data:
            (out,) = self.session.run(None, {inputs[0].name: np.array(row["body"], dtype=np.float32)})
            answers.append({"inputs": [[i.name, i.shape, i.type] for i in inputs], "out": out.tolist()})
        return answers
