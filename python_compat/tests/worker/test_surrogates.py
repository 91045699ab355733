"""Texts that UTF-8 cannot encode, and NULs: TorchServe's worker dies of most, this one answers the other requests and goes on."""

from __future__ import annotations

import json
import logging
import sys
from pathlib import Path
from typing import Any, List

import pytest
from workerkit import Session, body, make_model

from flambeau.worker import logs
from flambeau.worker.failure import failure_of
from flambeau.worker.frames import RESULTS, encode_results

HALF = "\ud83d"  # the first half of an emoji, as a tokenizer leaves it

HANDLER = """
import sys
from ts.handler_utils.utils import send_intermediate_predict_response as send
from ts.metrics.dimension import Dimension
from ts.utils.util import PredictionException

S = "\\ud83d"

class H:
    def initialize(self, context):
        pass

    def handle(self, data, context):
        words = [row["body"] for row in data]
        if "stream" in words:
            send(["p" + S if word == "stream" else "p" for word in words], context.request_ids, "m", 200, context)
        return [getattr(self, word)(index, context) for index, word in enumerate(words)]

    def fine(self, index, context):
        return "fine"

    stream = fine

    def text(self, index, context):
        return "a" + S

    def document(self, index, context):
        return {S: [S]}

    def header(self, index, context):
        context.set_response_header(index, "X-A", S)
        return "x"

    def name(self, index, context):
        context.set_response_header(index, "X-" + S, "a")
        return "x"

    def content_type(self, index, context):
        context.set_response_content_type(index, "text/" + S)
        return "x"

    def phrase(self, index, context):
        context.set_response_status(299, "fine" + S, index)
        return "x"

    def output(self, index, context):
        print("printed " + S)
        sys.stderr.write("warned " + S + "\\n")
        return "x"

    def metric(self, index, context):
        context.metrics.add_counter("m" + S, 1, None, [Dimension("d" + S, S)])
        return "x"

    def error(self, index, context):
        raise ValueError("bad " + S + "\\0")

    def attribute(self, index, context):
        return getattr(self, "no" + S)

    def answer(self, index, context):
        raise PredictionException("bad " + S + "\\0", 422)

    def message(self, index, context):
        send(["p"], context.request_ids, "bad " + S, 422, context)
        return "x"
"""


@pytest.fixture
def half(session: Session, tmp_path: Path) -> Session:
    """A worker with a handler that does as each request's body says."""
    session.load(make_model(tmp_path, {"h.py": HANDLER}), "h.py")
    return session


def ask(session: Session, *words: str) -> List[Any]:
    return session.run(*[body(word.encode(), "text/plain", "id%d" % index) for index, word in enumerate(words)])


@pytest.mark.parametrize(
    ("word", "why"),
    [
        ("text", "result 1 is a str that UTF-8 cannot encode"),
        ("header", "the value of response header 'X-A' cannot be encoded"),
        ("name", "cannot be the name of a response header"),
        ("content_type", "the value of response header 'content-type' cannot be encoded"),
    ],
)
def test_an_answer_that_cannot_be_sent_fails_its_own_request(half: Session, word: str, why: str) -> None:
    results = ask(half, "fine", word, "fine")
    assert [(r.status, r.body, r.message) for r in results] == [(0, b"fine", ""), (500, b"", "Worker died."), (0, b"fine", "")]
    assert why in results[1].detail
    assert ask(half, word)[0].status == 500, "alone in its batch"
    assert ask(half, "fine")[0].body == b"fine", "the worker goes on"


def test_json_has_escapes_for_them(half: Session) -> None:
    (result,) = ask(half, "document")
    assert json.loads(result.body) == {HALF: [HALF]}


def test_a_phrase_is_not_sent_and_does_no_harm(half: Session) -> None:
    assert [(r.status, r.body) for r in ask(half, "phrase")] == [(299, b"x")]


@pytest.mark.filterwarnings("ignore::PendingDeprecationWarning")
def test_a_piece_that_cannot_be_sent_fails_its_own_request(half: Session) -> None:
    frames = half.frames(body(b"fine", "text/plain"), body(b"stream", "text/plain", "id1"))
    (kind, pieces), (_, lasts) = frames
    assert kind == 3
    assert [(p.status, p.body, p.message) for p in pieces] == [(0, b"p", ""), (500, b"", "Worker died.")]
    assert "UTF-8" in pieces[1].detail
    assert lasts[0].body == b"fine"
    ((kind, (result,)),) = half.frames(body(b"stream", "text/plain"))
    assert (kind, result.status, result.message) == (2, 500, "Worker died."), "nobody has a piece: the handler is told"


@pytest.mark.parametrize(
    ("word", "status", "message", "detail"),
    [
        ("error", 503, "Prediction failed", "ValueError: bad \\ud83d\0"),
        ("attribute", 503, "Prediction failed", "has no attribute 'no\\ud83d'"),
        ("answer", 422, "bad \\ud83d\0", "bad \\ud83d\0"),
    ],
)
def test_exceptions_with_such_texts(half: Session, word: str, status: int, message: str, detail: str) -> None:
    (result,) = ask(half, word)
    assert (result.status, result.message) == (status, message)
    assert detail in result.detail
    assert ask(half, "fine")[0].body == b"fine"


@pytest.mark.filterwarnings("ignore::PendingDeprecationWarning")
def test_an_error_as_a_piece_with_such_a_text(half: Session) -> None:
    (_, (piece,)), _ = half.frames(body(b"message", "text/plain"))
    assert (piece.status, piece.message) == (422, "bad \\ud83d")


def test_a_load_that_fails_with_such_a_text(session: Session, tmp_path: Path) -> None:
    answer = session.load(make_model(tmp_path, {"h.py": 'raise ValueError("bad \\ud83d\\0")\n'}), "h.py")
    assert answer["failure"]["message"].startswith("ValueError: bad ")
    json.dumps(answer).encode("utf-8")


def test_an_error_in_code_with_such_a_file_name(session: Session, tmp_path: Path) -> None:
    code = "exec(compile('1/0', %s, 'exec'))\n" % ascii("/x/" + HALF)
    answer = session.load(make_model(tmp_path, {"h.py": code}), "h.py")
    assert answer["failure"]["message"].startswith("ZeroDivisionError: division by zero (")
    try:
        exec(compile("1/0", "/x/" + HALF, "exec"), {})
    except ZeroDivisionError as err:
        frame = encode_results(RESULTS, 1, [failure_of(err, "/x")])
        assert b"ZeroDivisionError" in frame


def test_what_is_written_has_escapes(half: Session, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("stdout", "stderr", "__stdout__", "__stderr__"):
        monkeypatch.setattr(sys, name, None)
    root = logging.getLogger()
    monkeypatch.setattr(root, "handlers", [])
    monkeypatch.setattr(root, "level", root.level)
    path = tmp_path / "log"
    with open(path, "wb") as file:
        logs.install(half.scope, file.fileno(), file.fileno())
        assert ask(half, "output", "metric")[1].body == b"x"
        logging.getLogger("ts").error("logged %s", HALF)
        logs.flush()
    written = path.read_bytes().decode("utf-8")
    for said in ("printed \\ud83d\n", "warned \\ud83d\n", "logged \\ud83d\n", "m\\ud83d"):
        assert said in written
