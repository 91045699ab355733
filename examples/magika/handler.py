"""Says what kind of file a request's body is. An ordinary TorchServe handler around Magika's ONNX model."""

import json
import os

import numpy as np
import onnxruntime


class FileTypeHandler:
    """One instance lives in each worker; handle is called once for each batch."""

    def initialize(self, context):
        """Loads the model and its labels from the unpacked archive."""
        folder = context.system_properties["model_dir"]
        with open(os.path.join(folder, "config.min.json"), encoding="utf-8") as file:
            self.config = json.load(file)
        model = os.path.join(folder, context.manifest["model"]["serializedFile"])
        self.session = onnxruntime.InferenceSession(model, providers=["CPUExecutionProvider"])

    def handle(self, data, context):
        """Takes the rows of a batch and gives one answer for each, in the same order."""
        features = np.stack([self.features(row.get("data", row.get("body", b""))) for row in data])
        scores = self.session.run(["target_label"], {"bytes": features})[0]
        labels = self.config["target_labels_space"]
        return [{"label": labels[best], "score": float(row[best])} for row, best in zip(scores, scores.argmax(axis=1))]

    def features(self, content):
        """Gives the model's input for one file: its first and last 1,024 bytes without the white space around them."""
        if not isinstance(content, (bytes, bytearray, str)):  # sent as application/json: decoded on the way
            content = json.dumps(content)
        content = content.encode() if isinstance(content, str) else bytes(content)
        block, size, padding = (self.config[key] for key in ("block_size", "beg_size", "padding_token"))
        first, last = content[:block].lstrip()[:size], content[-block:].rstrip()[-size:]
        row = np.full(2 * size, padding, dtype=np.int32)
        row[: len(first)] = list(first)
        row[2 * size - len(last) :] = list(last)
        return row
