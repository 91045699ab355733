"""A handler of TorchServe's kind for the TorchScript file of silero-vad: the probabilities of speech in signals of 16 kHz."""

import json

import numpy as np
import torch
from ts.torch_handler.base_handler import BaseHandler

RATE, FRAME = 16000, 512


class VoiceHandler(BaseHandler):
    """Signals of a batch that have the same length are rows of one run; the model's state begins anew with each batch."""

    def preprocess(self, data):
        rows = []
        for item in data:
            body = item.get("body") or item.get("data")
            if isinstance(body, dict):  # a request of the Open Inference Protocol
                given = body["inputs"][0]
                rows.append(np.asarray(given["data"], np.float32).reshape(given["shape"]))
            else:
                rows.append(np.frombuffer(body, np.float32)[None])
        return rows

    def inference(self, data, *args, **kwargs):
        lengths = {row.shape[1] for row in data}
        answers = [None] * len(data)
        with torch.inference_mode():
            for length in lengths:
                members = [i for i, row in enumerate(data) if row.shape[1] == length]
                audio = torch.from_numpy(np.concatenate([data[i] for i in members])).to(self.device)
                self.model.reset_states()
                steps = [self.model(audio[:, at : at + FRAME], RATE) for at in range(0, length - FRAME + 1, FRAME)]
                together = torch.cat(steps, dim=1).cpu().numpy()
                for i in members:
                    answers[i], together = together[: len(data[i])], together[len(data[i]) :]
        return answers

    def postprocess(self, data):
        if self.manifest["model"]["modelName"].endswith("-oip"):
            return [
                {"outputs": [{"name": "probabilities", "datatype": "FP32", "shape": list(a.shape), "data": a.ravel().tolist()}]}
                for a in data
            ]
        return [json.dumps(a[0].tolist()) for a in data]
