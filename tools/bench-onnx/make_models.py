"""Writes the models, request bodies and right answers of the benchmark.

    python make_models.py FOLDER

FOLDER gets magika.onnx, resnet18.onnx, a body and a form for each, and expected.json. Needs torch, torchvision, onnx, onnxruntime
and magika.
"""

import json
import shutil
import sys
from pathlib import Path

import magika
import numpy as np
import onnxruntime
import torch
import torchvision

FORM = (b'--XbenchX\r\nContent-Disposition: form-data; name="content"; filename="x"\r\n\r\n', b"\r\n--XbenchX--\r\n")


def magika_body() -> np.ndarray:
    """The features of a short text: its first and last 1,024 bytes. The model is not quite sure of this one."""
    text = b'{"a": [1, 2, 3], "b": null}'
    begin, end = text.lstrip()[:1024], text.rstrip()[-1024:]
    return np.array([*begin, *[256] * (1024 - len(begin)), *[256] * (1024 - len(end)), *end], np.int32)


def resnet(path: Path) -> np.ndarray:
    """Seeded weights: nothing is downloaded. The batch axis is dynamic."""
    torch.manual_seed(0)
    model = torchvision.models.resnet18().eval()
    names = {"x": {0: "n"}, "y": {0: "n"}}
    torch.onnx.export(
        model, (torch.zeros(1, 3, 224, 224),), str(path), input_names=["x"], output_names=["y"], dynamic_axes=names, dynamo=False
    )
    return np.random.default_rng(0).standard_normal((3, 224, 224), np.float32)


def digits(scores: np.ndarray) -> str:
    """The beginning of a number of the answer that rounding cannot change: its further decimals are in the middle."""
    for score in sorted(scores.tolist(), reverse=True):
        text = f"{score:.7f}"
        if 1e-3 < abs(score) < 0.9999 and "25" < text[-2:] < "75":
            return text[:-2]
    raise ValueError("no score will do")


def main() -> None:
    out = Path(sys.argv[1])
    out.mkdir(parents=True, exist_ok=True)
    shutil.copy(next((Path(magika.__file__).parent / "models").glob("standard_v3_3/model.onnx")), out / "magika.onnx")
    expected = {}
    for name, body in (("magika", magika_body()), ("resnet18", resnet(out / "resnet18.onnx"))):
        session = onnxruntime.InferenceSession(str(out / f"{name}.onnx"), providers=["CPUExecutionProvider"])
        expected[name] = digits(session.run(None, {session.get_inputs()[0].name: body[None]})[0][0])
        (out / f"{name}.bin").write_bytes(body.tobytes())
        (out / f"{name}.bin.form").write_bytes(body.tobytes().join(FORM))
    (out / "expected.json").write_text(json.dumps(expected))


if __name__ == "__main__":
    main()
