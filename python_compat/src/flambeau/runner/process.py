"""The process of `flambeau run`: it takes a job, loads the model as a worker does, runs the request, and reports."""

from __future__ import annotations

import bdb
import faulthandler
import logging
import os
import sys
import time

from flambeau.runner import job as jobs
from flambeau.runner.report import Output, Report, dumps, status_of
from flambeau.runner.watch import Watch
from flambeau.worker.failure import load_failure, place_of
from flambeau.worker.frames import Answer
from flambeau.worker.process import end

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import List, Optional

    from flambeau.runner.report import Results
    from flambeau.worker.model import Model

ANSWERED, FAILED, NOT_RUN, INTERRUPTED = 0, 1, 2, 130

_METRIC = "[METRICS]"
_NOT_BY_HAND = "This is a part of the command `flambeau run`, which starts it itself.\n"

log = logging.getLogger(__name__)


def main() -> None:
    """Do what the command asks for; never returns."""
    try:
        job = jobs.take()
    except (OSError, ValueError):
        sys.stderr.write(_NOT_BY_HAND)
        sys.exit(NOT_RUN)
    sys.argv[1:] = []  # a handler sees what it sees in a worker
    answer_fd = _arrange_streams(job.debugger)
    report = Report(job.load)
    _arrange_logging(report.metrics)
    faulthandler.enable(file=2)
    output = Output(answer_fd, job.head, job.json)
    try:
        status = Run(job, report, output).all()
    except jobs.InputError as err:
        _say(str(err))
        end(NOT_RUN)
    except KeyboardInterrupt:
        _say("interrupted")
        status = INTERRUPTED
    except SystemExit as err:
        _say("the handler ended the process with sys.exit(%r): a server would start its worker again" % (err.code,))
        status = FAILED
    sys.stdout.flush()
    if job.json:
        output.whole(dumps(report.object()))
    else:
        sys.stderr.write("\n" + report.text())
    end(status)


class Run:
    """A job on its way."""

    def __init__(self, job: jobs.Job, report: Report, output: Output) -> None:
        self._job = job
        self._report = report
        self._output = output
        self._watch = Watch(steps=not job.debugger)

    def all(self) -> int:
        """Load the model and make the request as often as asked; give the exit status. Raises what ends the process."""
        self._job.read_input()
        _no_input(self._job.debugger)
        model = self._load()
        if model is None:
            return FAILED
        for number in range(self._job.repeat):
            status = self._once(model, number)
            if status != ANSWERED:
                return status
        return ANSWERED

    def _load(self) -> Optional[Model]:
        from flambeau.worker.model import Model

        request, report, watch = self._job.load, self._report, self._watch
        report.once["unpack"] = self._job.unpack
        report.once["start"] = max(0.0, time.time() - self._job.started)
        try:
            return Model.load(request, watch.resolve)
        except KeyboardInterrupt:
            raise
        except BaseException as err:
            report.failure = load_failure(err, request["model_dir"])
            log.error("model %s could not be loaded\n%s", request["model_name"], report.failure["detail"])
            _say("the model could not be loaded: %s%s" % (report.failure["message"], self._hint(err)))
            return None
        finally:
            report.handler = watch.handler
            report.once.update(watch.load)

    def _once(self, model: Model, number: int) -> int:
        report, watch = self._report, self._watch
        first = number == 0
        metrics = len(report.metrics)
        items = self._job.items(number)
        watch.begin()
        began = time.perf_counter()
        try:
            results = model.run(items, self._piece if first else lambda results: None)
        finally:
            ended = time.perf_counter()
            if first:
                report.rows, report.headers = watch.rows, watch.headers
            times = {"input": (watch.began or ended) - began}
            times.update(watch.run)
            if watch.ended:
                times["encode"] = ended - watch.ended
            report.runs.append(times)
            if not first:
                del report.metrics[metrics:]  # those of the first run are enough
        status = self._failed(results)
        if first or status != ANSWERED:
            report.results = results
            self._output.last(results)
        return status

    def _piece(self, results: Results) -> None:
        self._report.pieces.append(results)
        self._output.piece(results)

    def _failed(self, results: Results) -> int:
        """Tell what failed, each reason once, as the server's log would have it."""
        failures = [result for result in results if not isinstance(result, Answer)]
        told: List[str] = []
        for failure in failures:
            if failure.detail and failure.detail not in told:
                told.append(failure.detail)
                log.error("%s", failure.detail)
        if not failures:
            return ANSWERED
        err = self._watch.error
        place = place_of(err, self._job.load["model_dir"]) if err is not None else ""
        _say(
            "the handler failed%s: a client would get %d, %s%s"
            % (" at " + place if place else "", status_of(failures[0]), failures[0].message, self._hint(err))
        )
        return FAILED

    def _hint(self, err: Optional[BaseException]) -> str:
        if not isinstance(err, bdb.BdbQuit):
            return ""
        if self._job.debugger:
            return " (the debugger was left by its command quit)"
        return " (there is a breakpoint in it: add --debugger to use it)"


class _MetricLines(logging.Filter):
    """Keeps the lines that report metrics for the report; on a server they do not appear in the log either."""

    def __init__(self, lines: List[str]) -> None:
        super().__init__()
        self._lines = lines

    def filter(self, record: logging.LogRecord) -> bool:
        text = record.getMessage()
        if not text.startswith(_METRIC):
            return True
        self._lines.append(text[len(_METRIC) :])
        return False


def _arrange_logging(metrics: List[str]) -> None:
    """Set the root logger up as a worker does: bare messages from level INFO on, where print() goes."""
    handler = logging.StreamHandler(sys.stdout)
    handler.setFormatter(logging.Formatter("%(message)s"))
    handler.addFilter(_MetricLines(metrics))
    root = logging.getLogger()
    root.addHandler(handler)
    root.setLevel(logging.INFO)


def _arrange_streams(debugger: bool) -> int:
    """Keep stdout for the answer, and let all that is printed go to stderr; give the answer's descriptor."""
    answer_fd = os.dup(1)
    # pdb prints where print() does, and with line editing only to a terminal: it keeps stdout when stderr is none.
    if not debugger or os.isatty(2):
        os.dup2(2, 1)
    for stream in (sys.stdout, sys.stderr):
        stream.reconfigure(encoding="utf-8", errors="backslashreplace", line_buffering=True)  # type: ignore[union-attr]
    return answer_fd


def _no_input(debugger: bool) -> None:
    """Give a handler the empty stdin that it has in a worker, unless that is the debugger's."""
    if not debugger:
        empty = os.open(os.devnull, os.O_RDONLY)
        os.dup2(empty, 0)
        os.close(empty)


def _say(text: str) -> None:
    sys.stdout.flush()
    sys.stderr.write("flambeau run: %s\n" % text)
