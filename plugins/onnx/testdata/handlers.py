"""Writes models with a handler, requests to them, and what the Python handlers answer.

    python handlers.py FOLDER

FOLDER/HANDLER has model.onnx, model-config.yaml and what else the model needs; FOLDER/HANDLER/*.request are bodies, and the
*.answer
beside each is the JSON that Python gives. The handlers of pictures are the built-in ones, with onnxruntime in place of
torch's model.
"""

import io
import json
import shutil
import sys
from pathlib import Path
from typing import Any, Dict, List

import matplotlib
import numpy as np
import onnx
import onnxruntime
import torch
from onnx import TensorProto, helper, numpy_helper
from PIL import Image

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parents[2] / "python_compat" / "src"))

from ts.torch_handler.image_classifier import ImageClassifier  # noqa: E402
from ts.torch_handler.object_detector import ObjectDetector  # noqa: E402
from ts.utils.util import load_label_mapping  # noqa: E402

RNG = np.random.default_rng(3)


def save(
    folder: Path, inputs: List[Any], outputs: List[Any], nodes: List[Any], constants: Dict[str, np.ndarray]
) -> onnxruntime.InferenceSession:
    folder.mkdir(parents=True)
    graph = helper.make_graph(nodes, "g", inputs, outputs, [numpy_helper.from_array(v, k) for k, v in constants.items()])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.checker.check_model(model)
    onnx.save(model, str(folder / "model.onnx"))
    return onnxruntime.InferenceSession(str(folder / "model.onnx"), providers=["CPUExecutionProvider"])


def value(name: str, kind: int, *shape: Any) -> Any:
    return helper.make_tensor_value_info(name, kind, list(shape))


def requests(folder: Path, handler: Any) -> None:
    """Pictures in every form, each asked alone."""
    photo = Image.open(Path(matplotlib.get_data_path()) / "sample_data" / "grace_hopper.jpg").convert("RGB")
    for name, image, form in (
        ("a", photo, "JPEG"),
        ("b", photo.rotate(90, expand=True), "PNG"),
        ("c", photo.resize((700, 300)), "WEBP"),
        ("d", photo, "PNG"),
    ):
        data = io.BytesIO()
        image.save(data, form, lossless=True) if form == "WEBP" else image.save(data, form)
        (folder / f"{name}.request").write_bytes(data.getvalue())
        answer = handler.postprocess(handler.model(handler.preprocess([{"body": data.getvalue()}])))[0]
        (folder / f"{name}.answer").write_text(json.dumps(answer, indent=2))


def handler_of(kind: Any, folder: Path) -> Any:
    made = kind()
    made.device, made.context = torch.device("cpu"), None
    made.mapping = load_label_mapping(str(folder / "index_to_name.json"))
    return made


def image_classifier(out: Path) -> None:
    """A convolution with 12 random classes, whose scores depend on the picture."""
    folder = out / "image_classifier"
    weights = RNG.standard_normal((24, 3, 16, 16)).astype(np.float32) / 8
    dense = RNG.standard_normal((24, 12)).astype(np.float32) / 5
    session = save(
        folder,
        [value("x", TensorProto.FLOAT, "n", 3, 224, 224)],
        [value("scores", TensorProto.FLOAT, "n", 12)],
        [
            helper.make_node("Conv", ["x", "w"], ["c"], strides=[16, 16]),
            helper.make_node("Relu", ["c"], ["r"]),
            helper.make_node("GlobalAveragePool", ["r"], ["p"]),
            helper.make_node("Flatten", ["p"], ["f"]),
            helper.make_node("MatMul", ["f", "d"], ["scores"]),
        ],
        {"w": weights, "d": dense},
    )
    (folder / "model-config.yaml").write_text("handler: image_classifier\n")
    (folder / "index_to_name.json").write_text(json.dumps({str(i): ["n%d" % i, "label %d" % i] for i in range(12)}))
    handler = handler_of(ImageClassifier, folder)
    handler.model = lambda x: torch.from_numpy(session.run(None, {"x": x.numpy()})[0])
    requests(folder, handler)


def object_detector(out: Path) -> None:
    """Three objects whose scores and boxes are means of the picture."""
    folder = out / "object_detector"
    session = save(
        folder,
        [value("image", TensorProto.FLOAT, 1, 3, "h", "w")],
        [value("boxes", TensorProto.FLOAT, 3, 4), value("labels", TensorProto.INT64, 3), value("scores", TensorProto.FLOAT, 3)],
        [
            helper.make_node("ReduceMean", ["image"], ["m"], axes=[0, 2, 3], keepdims=0),
            helper.make_node("Mul", ["m", "two"], ["scores"]),
            helper.make_node("Unsqueeze", ["m", "one"], ["column"]),
            helper.make_node("Mul", ["column", "corners"], ["boxes"]),
            helper.make_node("Identity", ["kinds"], ["labels"]),
        ],
        {
            "two": np.array([2, 1, 1.5], np.float32),
            "one": np.array([1], np.int64),
            "corners": np.array([[10, 20, 300, 400]], np.float32),
            "kinds": np.array([1, 3, 2], np.int64),
        },
    )
    (folder / "model-config.yaml").write_text("handler: object_detector\n")
    (folder / "index_to_name.json").write_text(json.dumps({"object_type_names": ["background", "person", "car", "hat"]}))
    handler = handler_of(ObjectDetector, folder)

    def model(x: Any) -> Any:
        boxes, labels, scores = (torch.from_numpy(v) for v in session.run(None, {"image": x.numpy()}))
        return [{"boxes": boxes, "labels": labels, "scores": scores}]

    handler.model = model
    requests(folder, handler)


def texts(out: Path, kind: str, pooled: bool) -> None:
    """Random vectors for tokens: their mean with mask and three scores of it, or the vectors themselves."""
    folder = out / kind
    table = RNG.standard_normal((420, 16)).astype(np.float32)
    ids = [value(n, TensorProto.INT64, "n", "s") for n in ("input_ids", "attention_mask")]
    nodes = [helper.make_node("Gather", ["table", "input_ids"], ["last_hidden_state"])]
    constants = {"table": table, "dense": RNG.standard_normal((16, 3)).astype(np.float32) * 4}
    outputs = [value("last_hidden_state", TensorProto.FLOAT, "n", "s", 16)]
    if pooled:
        outputs = [value("logits", TensorProto.FLOAT, "n", 3)]
        constants.update(last=np.array([2], np.int64), middle=np.array([1], np.int64))
        nodes += [
            helper.make_node("Cast", ["attention_mask"], ["m"], to=TensorProto.FLOAT),
            helper.make_node("Unsqueeze", ["m", "last"], ["mask"]),
            helper.make_node("Mul", ["last_hidden_state", "mask"], ["kept"]),
            helper.make_node("ReduceSum", ["kept", "middle"], ["sum"], keepdims=0),
            helper.make_node("ReduceSum", ["mask", "middle"], ["count"], keepdims=0),
            helper.make_node("Div", ["sum", "count"], ["mean"]),
            helper.make_node("MatMul", ["mean", "dense"], ["logits"]),
        ]
    else:
        constants.pop("dense")
        nodes.append(helper.make_node("Identity", ["attention_mask"], ["unused"]))
    session = save(folder, ids, outputs, nodes, constants)
    (folder / "model-config.yaml").write_text(f"handler: {kind}\n")
    shutil.copy(HERE.parent / "tokenize" / "testdata" / "wordpiece.json", folder / "tokenizer.json")
    if pooled:
        (folder / "index_to_name.json").write_text(json.dumps({"0": "bad", "1": "good", "2": "neither"}))
    for number, case in enumerate(json.loads((HERE.parent / "tokenize" / "testdata" / "wordpiece.want").read_text())):
        if not case["text"].strip():
            continue
        row = np.array([case["ids"]], np.int64)
        got = session.run(None, {"input_ids": row, "attention_mask": np.ones_like(row)})[0]
        if pooled:
            answer: Any = dict(zip(("bad", "good", "neither"), torch.softmax(torch.from_numpy(got), 1)[0].tolist()))
        else:
            mean = got[0].mean(0)
            answer = (mean / np.linalg.norm(mean)).tolist()
        (folder / f"{number}.request").write_bytes(
            json.dumps({"text": case["text"]}).encode() if number % 2 else case["text"].encode()
        )
        (folder / f"{number}.answer").write_text(json.dumps(answer))


def main() -> None:
    out = Path(sys.argv[1])
    image_classifier(out)
    object_detector(out)
    texts(out, "text_classifier", pooled=True)
    texts(out, "embedding", pooled=False)


if __name__ == "__main__":
    main()
