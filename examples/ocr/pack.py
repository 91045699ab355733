"""Makes the model store of the example.

    python examples/ocr/pack.py STORE MODELS

MODELS is the folder with the models of the package rapidocr-onnxruntime. Needs the package onnx, and Go.
"""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import onnx
from onnx import TensorProto, helper

HERE = Path(__file__).resolve().parent
MODELS = {
    "ocr-det": "ch_PP-OCRv4_det_infer.onnx",
    "ocr-cls": "ch_ppocr_mobile_v2.0_cls_infer.onnx",
    "ocr-rec": "ch_PP-OCRv4_rec_infer.onnx",
}


def most_likely(model: onnx.ModelProto) -> None:
    """Has the reader give the most likely of its 6625 characters for each column and how likely it is, not all of them."""
    scores = model.graph.output[0].name
    model.graph.node.append(helper.make_node("ArgMax", [scores], ["index"], axis=2, keepdims=0))
    model.graph.node.append(helper.make_node("ReduceMax", [scores], ["likely"], axes=[2], keepdims=0))
    del model.graph.output[:]
    model.graph.output.append(helper.make_tensor_value_info("index", TensorProto.INT64, ["lines", "columns"]))
    model.graph.output.append(helper.make_tensor_value_info("likely", TensorProto.FLOAT, ["lines", "columns"]))


def main() -> None:
    store, models = Path(sys.argv[1]).resolve(), Path(sys.argv[2])
    for name, file in MODELS.items():
        (store / name).mkdir(parents=True, exist_ok=True)
        if name != "ocr-rec":
            shutil.copy(models / file, store / name / "model.onnx")
            continue
        reader = onnx.load(models / file)
        characters = {p.key: p.value for p in reader.metadata_props}["character"]
        most_likely(reader)
        onnx.save(reader, store / name / "model.onnx")
    program = store / "ocr-page" / "step"
    for name in ("ocr-page", "ocr-crops", "ocr-lines", "ocr-text"):
        (store / name).mkdir(parents=True, exist_ok=True)
        shutil.copy(HERE / name / "model-config.yaml", store / name / "model-config.yaml")
    (store / "ocr-text/characters.txt").write_text(characters.rstrip("\n") + "\n", encoding="utf-8")
    go = os.environ.get("GO", "go")
    environment = {**os.environ, "CGO_ENABLED": "0"}
    subprocess.run([go, "build", "-trimpath", "-o", str(program), "."], cwd=HERE, env=environment, check=True)
    for name in ("ocr-crops", "ocr-lines", "ocr-text"):
        shutil.copy(program, store / name / "step")
    (store / "ocr").mkdir(exist_ok=True)
    shutil.copy(HERE / "ocr/model-config.yaml", store / "ocr/model-config.yaml")  # last: it needs the others


if __name__ == "__main__":
    main()
