#!/usr/bin/env python3
"""Ask models that keep a state, those of silero-vad, frame by frame, and compare with onnxruntime.

usage: voice.py HOST:PORT HOST:PORT FOLDER     the server's REST and gRPC, and its model store with vad, vad16, voices, vad-script

Every way to ask is a function. Each way gives the probabilities and the last state of four signals, one by one and all as the
rows of one request, equal to onnxruntime's to 0.0001. Exit status 1 with a traceback if anything is not as it has to be.
"""

from __future__ import annotations

import io
import json
import queue
import sys
import urllib.request
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import tritonclient.grpc
import tritonclient.http

RATE, FRAME, CONTEXT = 16000, 512, 64
ATOL = 1e-4
Feeds = dict[str, np.ndarray]
Ask = Callable[[str, Feeds], list[np.ndarray]]  # the outputs "output" and "stateN"


def signals() -> np.ndarray:
    """Silence, a tone, noise, and something like a voice: harmonics with formants that move, in syllables. One second each."""
    t = np.arange(RATE) / RATE
    base, syllables = 110, 2
    pitch = 2 * np.pi * np.cumsum(base + 25 * np.sin(2 * np.pi * 3 * t)) / RATE
    swing = np.sin(2 * np.pi * syllables * t)
    voice = np.zeros(RATE)
    for k in range(1, 40):
        formants = ((600 + 200 * swing, 150), (1300 + 400 * swing, 200), (2600 + 100 * swing, 250))
        voice += np.sin(k * pitch) / np.sqrt(k) * sum(np.exp(-(((k * base - middle) / width) ** 2)) for middle, width in formants)
    voice *= np.sqrt(np.clip(swing, 0, None))
    noise = np.random.default_rng(5).normal(0, 0.1, RATE)
    return np.stack([np.zeros(RATE), 0.3 * np.sin(2 * np.pi * 440 * t), noise, 0.6 * voice / np.abs(voice).max()]).astype(
        np.float32
    )


def frames(audio: np.ndarray) -> list[np.ndarray]:
    """Rows of FRAME samples, each with the CONTEXT before it."""
    padded = np.concatenate([np.zeros((len(audio), CONTEXT), np.float32), audio], axis=1)
    return [padded[:, at : at + CONTEXT + FRAME] for at in range(0, audio.shape[1] - FRAME + 1, FRAME)]


def over(audio: np.ndarray, ask: Ask, model: str) -> tuple[np.ndarray, np.ndarray]:
    """The probabilities of all frames, and the last state."""
    state, seen = np.zeros((2, len(audio), 128), np.float32), []
    for frame in frames(audio):
        probability, state = ask(model, {"input": frame, "state": state, "sr": np.array(RATE, np.int64)})
        assert probability.shape == (len(audio), 1) and state.shape == (2, len(audio), 128), (probability.shape, state.shape)
        seen.append(probability[:, 0])
    return np.stack(seen, axis=1), state


def local(store: Path) -> Ask:
    """onnxruntime in this process."""
    sessions: dict[str, onnxruntime.InferenceSession] = {}

    def ask(model: str, feeds: Feeds) -> list[np.ndarray]:
        if model not in sessions:
            sessions[model] = onnxruntime.InferenceSession(store / model / "model.onnx", providers=["CPUExecutionProvider"])
        return sessions[model].run(["output", "stateN"], feeds)

    return ask


def post(url: str, body: bytes, content: str) -> bytes:
    request = urllib.request.Request(url, data=body, headers={"Content-Type": content})
    with urllib.request.urlopen(request, timeout=60) as answer:
        return bytes(answer.read())


def predictions(rest: str) -> Ask:
    """The arrays as JSON on /predictions."""

    def ask(model: str, feeds: Feeds) -> list[np.ndarray]:
        body = json.dumps({name: value.tolist() for name, value in feeds.items()}).encode()
        answer = json.loads(post(f"http://{rest}/predictions/{model}", body, "application/json"))
        return [np.array(answer[name], np.float32) for name in ("output", "stateN")]

    return ask


def form(rest: str) -> Ask:
    """The arrays as files of numpy, in the fields of a form on /predictions."""

    def ask(model: str, feeds: Feeds) -> list[np.ndarray]:
        body = io.BytesIO()
        for name, value in feeds.items():
            body.write(f'--x\r\nContent-Disposition: form-data; name="{name}"; filename="{name}.npy"\r\n\r\n'.encode())
            np.save(body, value)
            body.write(b"\r\n")
        body.write(b"--x--\r\n")
        answer = json.loads(post(f"http://{rest}/predictions/{model}", body.getvalue(), "multipart/form-data; boundary=x"))
        return [np.array(answer[name], np.float32) for name in ("output", "stateN")]

    return ask


def given(client: Any, feeds: Feeds, **how: Any) -> list[Any]:
    """Inputs for tritonclient."""
    tensors = []
    for name, value in feeds.items():
        tensor = client.InferInput(name, list(value.shape), "INT64" if value.dtype == np.int64 else "FP32")
        tensor.set_data_from_numpy(value, **how)
        tensors.append(tensor)
    return tensors


def http(rest: str, binary: bool) -> Ask:
    """The protocol over HTTP."""
    client = tritonclient.http.InferenceServerClient(rest)
    wanted = [tritonclient.http.InferRequestedOutput(name, binary_data=binary) for name in ("output", "stateN")]

    def ask(model: str, feeds: Feeds) -> list[np.ndarray]:
        answer = client.infer(model, given(tritonclient.http, feeds, binary_data=binary), outputs=wanted)
        return [answer.as_numpy("output"), answer.as_numpy("stateN")]

    return ask


def rpc(address: str) -> Ask:
    """The protocol over gRPC."""
    client = tritonclient.grpc.InferenceServerClient(address)

    def ask(model: str, feeds: Feeds) -> list[np.ndarray]:
        answer = client.infer(model, given(tritonclient.grpc, feeds))
        return [answer.as_numpy("output"), answer.as_numpy("stateN")]

    return ask


def stream(address: str) -> Ask:
    """The same over one stream, with the sequence's marks."""
    client = tritonclient.grpc.InferenceServerClient(address)
    answers: queue.Queue[Any] = queue.Queue()
    client.start_stream(lambda result, error: answers.put(error or result))
    sent = 0

    def ask(model: str, feeds: Feeds) -> list[np.ndarray]:
        nonlocal sent
        count = RATE // FRAME
        begins, ends = sent % count == 0, sent % count == count - 1
        client.async_stream_infer(
            model, given(tritonclient.grpc, feeds), sequence_id=1 + sent // count, sequence_start=begins, sequence_end=ends
        )
        sent += 1
        answer = answers.get(timeout=60)
        if isinstance(answer, Exception):
            raise answer
        if sent % count == 0 and sent == 4 * count:
            client.stop_stream()
        return [answer.as_numpy("output"), answer.as_numpy("stateN")]

    return ask


def near(way: str, got: np.ndarray, want: np.ndarray) -> None:
    """Require equal numbers."""
    assert got.shape == want.shape, (way, got.shape, want.shape)
    worst = float(np.abs(got - want).max())
    assert worst <= ATOL, (way, worst)
    print(f"OK   {way}: differs by {worst:.2g} at most", flush=True)


def stateful(rest: str, address: str, store: Path) -> np.ndarray:
    """The models that are given their state, and give it back."""
    audio = signals()
    expected = {model: over(audio, local(store), model) for model in ("vad", "vad16")}
    for i, row in enumerate(audio):  # a row's answer is its own
        near(f"onnxruntime, row {i} alone", over(row[None], local(store), "vad")[0][0], expected["vad"][0][i])
    silence, tone, _, voice = expected["vad"][0]
    assert abs(silence.max() - 0.008911) < ATOL and abs(tone.max() - 0.00332) < ATOL, (silence.max(), tone.max())
    assert len(silence) == 31 and voice.max() > 0.9 and voice.min() < 0.1, (len(silence), voice)
    ways: dict[str, Callable[[], Ask]] = {
        "/predictions, JSON": lambda: predictions(rest),
        "/predictions, a form of .npy files": lambda: form(rest),
        "REST, JSON": lambda: http(rest, False),
        "REST, binary": lambda: http(rest, True),
        "gRPC": lambda: rpc(address),
    }
    for model, (probabilities, state) in expected.items():
        for way, make in ways.items():
            ask = make()
            got, last = over(audio, ask, model)
            near(f"{model}, {way}, four rows", got, probabilities)
            near(f"{model}, {way}, four rows' last state", last, state)
            for i in (0, 3):
                got, last = over(audio[i : i + 1], ask, model)
                near(f"{model}, {way}, row {i} alone", got[0], probabilities[i])
    ask = stream(address)
    for i, row in enumerate(audio):
        near(f"vad, a stream, row {i}", over(row[None], ask, "vad")[0][0], expected["vad"][0][i])
    with ThreadPoolExecutor(8) as together:
        rows = [*range(4), *range(4)]
        for i, got in zip(rows, together.map(lambda i: over(audio[i : i + 1], http(rest, True), "vad")[0][0], rows), strict=True):
            near(f"vad, beside others, row {i}", got, expected["vad"][0][i])
    return expected["vad"][0]


def whole(rest: str, address: str, store: Path) -> None:
    """The model that takes a whole signal's frames as its rows, and keeps the state itself."""
    audio = signals()
    session = onnxruntime.InferenceSession(store / "voices/model.onnx", providers=["CPUExecutionProvider"])
    names = ["speech_probs", "hn", "cn"]
    over_http, over_grpc = tritonclient.http.InferenceServerClient(rest), tritonclient.grpc.InferenceServerClient(address)
    for i, row in enumerate(audio):
        zero = np.zeros((1, 1, 128), np.float32)
        feeds = {"input": np.concatenate(frames(row[None])), "h": zero, "c": zero}
        want = session.run(names, feeds)
        by_http = over_http.infer("voices", given(tritonclient.http, feeds, binary_data=True))
        by_grpc = over_grpc.infer("voices", given(tritonclient.grpc, feeds))
        body = json.dumps({name: value.tolist() for name, value in feeds.items()}).encode()
        plain = json.loads(post(f"http://{rest}/predictions/voices", body, "application/json"))
        for name, right in zip(names, want, strict=True):
            near(f"voices, REST, row {i}, {name}", by_http.as_numpy(name), right)
            near(f"voices, gRPC, row {i}, {name}", by_grpc.as_numpy(name), right)
            near(f"voices, /predictions, row {i}, {name}", np.array(plain[name], np.float32), right)


def script(rest: str, address: str, expected: np.ndarray) -> None:
    """The TorchScript file of the same model, in an archive with a handler: it keeps the state itself, and says the same."""
    audio = signals()
    for i, row in enumerate(audio):
        answer = json.loads(post(f"http://{rest}/predictions/vad-script", row.tobytes(), "application/octet-stream"))
        near(f"vad-script, /predictions, row {i}", np.array(answer, np.float32), expected[i])
    with ThreadPoolExecutor(4) as together:  # they come as one batch
        url = f"http://{rest}/predictions/vad-script"
        answers = together.map(lambda row: json.loads(post(url, row.tobytes(), "application/octet-stream")), audio)
        for i, answer in enumerate(answers):
            near(f"vad-script, in a batch, row {i}", np.array(answer, np.float32), expected[i])
    over_http, over_grpc = tritonclient.http.InferenceServerClient(rest), tritonclient.grpc.InferenceServerClient(address)
    answer = over_http.infer("vad-script-oip", given(tritonclient.http, {"audio": audio}, binary_data=False))
    near("vad-script-oip, REST, four rows", answer.as_numpy("probabilities"), expected)
    answer = over_grpc.infer("vad-script-oip", given(tritonclient.grpc, {"audio": audio[3:]}))
    near("vad-script-oip, gRPC, one row", answer.as_numpy("probabilities"), expected[3:])


def main() -> None:
    rest, address, store = sys.argv[1], sys.argv[2], Path(sys.argv[3])
    expected = stateful(rest, address, store)
    whole(rest, address, store)
    script(rest, address, expected)


if __name__ == "__main__":
    main()
