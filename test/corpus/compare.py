#!/usr/bin/env python3
"""Runs the corpus of handlers on TorchServe and on Flambeau, and compares what clients get: status, headers, bytes.

    compare.py                              both servers; their commands are in .venv-peer/bin and .venv-test/bin
    compare.py --only 'stream-*,batch-*'    some cases
    compare.py --record                     both, and TorchServe's answers are written to answers.json
    compare.py --against answers.json       Flambeau alone, against the recorded answers; needs no Java
    compare.py --server-only flambeau       one server, and its answers are shown

Each case is a folder of cases/; README.md says what is in it. The Python that runs this makes the models of the cases, and needs
torch for it. Exit status: 0 when all are equal or differ as documented, 1 when something differs, 2 when nothing could be run.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import fnmatch
import json
import os
import re
import shutil
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any, Dict, List
from urllib.parse import urlencode

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))
sys.dont_write_bytecode = True

from kit import answers, archives, cases, client, server  # noqa: E402

ROOT = HERE.parents[1]
ORIGINAL, OURS = "torchserve", "flambeau"
REGISTER_LIMIT = 240.0  # seconds for a worker to load a model, on a busy machine
STAGGER = 0.05  # seconds between requests that are under way together, so that they come in order
RETRIES = 2  # for a case of which TorchServe, and only that, loses an answer, as it does now and then
SHOWN = 400  # characters of an answer that are shown

Answers = List[Dict[str, Any]]


class Side:
    """One server's way through all the cases, in a thread of its own."""

    def __init__(self, name: str, options: argparse.Namespace, work: Path, groups: list[list[cases.Case]]) -> None:
        self.name = name
        self.seconds: dict[str, float] = {}
        self.problems: list[str] = []  # of the server itself; read when the thread has ended
        self._options = options
        self._work = work / name
        self._made = work / "made"
        self._groups = groups
        self._results: dict[str, concurrent.futures.Future[Answers]] = {
            case.name: concurrent.futures.Future() for group in groups for case in group
        }
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name=name)

    @property
    def store(self) -> Path:
        """The folder of its archives."""
        return self._work / "store"

    def build(self) -> None:
        """Make all the archives. Raises archives.ArchiveError."""
        self.store.mkdir(parents=True)
        archiver = getattr(self._options, self.name) / "torch-model-archiver"
        if not archiver.is_file():
            raise archives.ArchiveError(
                "there is no %s; --%s names the folder of its commands (make compare makes both)" % (archiver, self.name)
            )
        for group in self._groups:
            for case in group:
                for archive in case.archives:
                    archives.build(case, archive, self._made, str(archiver), self.store)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def stop(self) -> None:
        """Let the thread end after the request that it is at, and wait for it."""
        self._stop.set()
        if self._thread.ident is not None:
            self._thread.join()

    def answers(self, case: cases.Case) -> Answers:
        """Wait for the answers of a case. Raises server.ServerError."""
        return self._results[case.name].result()

    def _run(self) -> None:
        for number, group in enumerate(self._groups):
            process = server.Server(
                self.name, self._command(), self._kept(), self._work / str(number), self.store, group[0].settings
            )
            try:
                for case in group:
                    self._one(process, case)
            finally:
                self._end(process)

    def _end(self, process: server.Server) -> None:
        try:
            process.stop()
        except server.ServerError as why:
            self.problems.append(str(why))

    def _one(self, process: server.Server, case: cases.Case) -> None:
        result = self._results[case.name]
        try:
            if self._stop.is_set():
                raise server.ServerError("%s was not asked: the run ended" % self.name)
            if not process.healthy():
                self._end(process)  # after one that has ended by itself
                try:
                    process.start()
                except server.ServerError:
                    self._stop.set()  # it would not start for the next case either
                    raise
            began = time.monotonic()
            got = self._answers(process, case)
            for _ in range(RETRIES if self.name == ORIGINAL else 0):
                if not lost(case, got):
                    break
                print("again   %-34s torchserve lost an answer" % case.name, flush=True)
                got = self._answers(process, case)
            self.seconds[case.name] = time.monotonic() - began
            result.set_result(got)
        except BaseException as why:
            result.set_exception(why)

    def _answers(self, process: server.Server, case: cases.Case) -> Answers:
        got = []
        try:
            for archive in case.archives:
                query = {"url": archives.file_name(archive), "initial_workers": "1", "synchronous": "true", **archive["register"]}
                request = {"method": "POST", "path": "/models?" + urlencode(query), "limit": REGISTER_LIMIT}
                got.append(answers.plain(client.ask(request, process.addresses["management"], []), archive))
            for step in case.steps:
                got += self._step(process, case, step)
        finally:
            for archive in reversed(case.archives):  # the first one is the default version, which goes last
                path = "/models/%s/%s" % (archive["register"].get("model_name", archive["name"]), archive["version"])
                client.ask({"method": "DELETE", "path": path}, process.addresses["management"], [])
        return got

    def _step(self, process: server.Server, case: cases.Case, step: list[dict[str, Any]]) -> Answers:
        if self._stop.is_set():
            raise server.ServerError("%s was interrupted" % self.name)
        folders = [case.folder, self._made / case.name]

        def ask(item: tuple[int, dict[str, Any]]) -> dict[str, Any]:
            number, request = item
            time.sleep(number * STAGGER)
            return answers.plain(self._ask(request, process.addresses[request["port"]], folders), request)

        with concurrent.futures.ThreadPoolExecutor(len(step)) as pool:
            return list(pool.map(ask, enumerate(step)))

    def _ask(self, request: dict[str, Any], address: tuple[str, int], folders: list[Path]) -> client.Answer:
        """Ask once, or `until` the body has what the request says: the metrics of an answer come a little after it."""
        until = time.monotonic() + float(request.get("limit", client.DEFAULT_LIMIT))
        while True:
            answer = client.ask(request, address, folders)
            if (
                re.search(request.get("until", "").encode("utf-8"), answer.body)
                or time.monotonic() > until
                or self._stop.is_set()
            ):
                return answer
            time.sleep(server.PAUSE)

    def _command(self) -> list[str]:
        if self.name == OURS and self._options.flambeau_command:
            return [self._options.flambeau_command, "torchserve"]
        return [str(getattr(self._options, self.name) / "torchserve")]

    def _kept(self) -> list[str]:
        return ["FLAMBEAU_PYTHON", "FLAMBEAU_HOME", "FLAMBEAU_LIBRARY"] if self._options.flambeau_command else []


class Report:
    """Compares case by case, prints a line for each, and counts."""

    def __init__(self, recorded: bool, ours: bool) -> None:
        """`recorded`: the original's answers are; `ours`: it is Flambeau that is compared with them."""
        self.equal = self.different = self.documented = self.skipped = self.broken = 0
        self.problems = 0  # of our server: a crash, a bad end
        self._recorded = recorded
        self._ours = ours

    def case(self, case: cases.Case, original: Answers, ours: Answers, archive_differences: list[str], times: str) -> None:
        """Compare a case's answers."""
        lines, documented, undocumented = list(archive_differences), 0, len(archive_differences)
        if len(original) != len(ours):
            undocumented += 1
            lines.append("    %d answers, but %d expected: record them anew" % (len(ours), len(original)))
        for index, (a, b) in enumerate(zip(original, ours)):
            found = answers.differences(a, b, self._recorded, case.floats)
            known = case.expected[index].get("differs")
            if known and not found:
                if self._ours:
                    lines.append("    %s: no longer differs (%s)" % (case.label(index), known["reason"]))
                continue
            if known and not answers.as_documented(b, known["ours"]):
                documented += 1
                lines.append("    %s: differs as documented: %s" % (case.label(index), known["reason"]))
                continue
            if known:
                found = answers.as_documented(b, known["ours"])
            undocumented += bool(found)
            for part, theirs, own in found:
                lines += [
                    "    %s: %s" % (case.label(index), part),
                    "        torchserve  " + _short(theirs),
                    "        flambeau    " + _short(own),
                ]
        word = "DIFFER" if undocumented else "known" if documented else "equal"
        self.equal += word == "equal"
        self.different += word != "equal"
        self.documented += word == "known"
        print("%-7s %-34s %3d answers  %s" % (word, case.name, len(ours), times))
        print("\n".join(lines) + "\n" if lines else "", end="", flush=True)

    def fail(self, case: cases.Case, why: BaseException) -> None:
        """A case that could not be run."""
        self.broken += 1
        print("BROKEN  %-34s %s: %s" % (case.name, type(why).__name__, why), flush=True)

    def end(self) -> int:
        """Print the sum and give the exit status."""
        broken = ", %d could not be run" % self.broken if self.broken else ""
        print(
            "%d equal, %d different (%d documented), %d skipped%s"
            % (self.equal, self.different, self.documented, self.skipped, broken)
        )
        if self.equal + self.different == 0:
            return 2
        return 1 if self.problems or self.broken or self.different > self.documented else 0


def _short(value: Any) -> str:
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    text = text.replace("\n", "\\n")
    return text if len(text) <= SHOWN else "%s… (%d characters)" % (text[:SHOWN], len(text))


def compare_archives(case: cases.Case, original: Side, ours: Side) -> list[str]:
    """In what the two archivers' archives of a case differ."""
    lines = []
    for archive in case.archives:
        name = archives.file_name(archive)
        a, b = archives.contents(original.store / name), archives.contents(ours.store / name)
        for file in sorted(set(a) | set(b)):
            if a.get(file) != b.get(file):
                what = "in one only" if file not in a or file not in b else "not the same"
                lines.append("    archive %s: %s is %s" % (name, file, what))
    return lines


def lost(case: cases.Case, got: Answers) -> bool:
    """Whether an answer did not come that should have."""
    return any(
        answer.get("outcome") == client.LATE and not expected.get("differs") for answer, expected in zip(got, case.expected)
    )


def groups_of(chosen: list[cases.Case]) -> list[list[cases.Case]]:
    """Cases that want the same settings, together: they share a server."""
    by_settings: dict[str, list[cases.Case]] = {}
    for case in chosen:
        by_settings.setdefault(json.dumps(case.settings, sort_keys=True), []).append(case)
    return list(by_settings.values())


def choose(options: argparse.Namespace, report: Report) -> list[cases.Case]:
    """The cases to run; those left out for what they need are counted as skipped."""
    patterns, without = options.only.split(","), set(filter(None, options.without.split(",")))
    chosen = []
    for case in cases.read_all(HERE / "cases"):
        if not any(fnmatch.fnmatch(case.name, pattern) for pattern in patterns):
            continue
        missing = sorted(without.intersection(case.needs))
        if missing:
            report.skipped += 1
            print("skipped %-34s needs %s" % (case.name, ", ".join(missing)))
            continue
        chosen.append(case)
    return chosen


def parse() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description="Compares Flambeau with TorchServe on a corpus of handlers.")
    parser.add_argument(
        "--torchserve", default=str(ROOT / ".venv-peer/bin"), help="folder with TorchServe's commands (%(default)s)"
    )
    parser.add_argument("--flambeau", default=str(ROOT / ".venv-test/bin"), help="folder with Flambeau's commands (%(default)s)")
    parser.add_argument(
        "--flambeau-command", default="", help="another build of Flambeau's server, to be started in place of the installed one"
    )
    parser.add_argument("--only", default="*", help="cases: names or patterns, separated by commas")
    parser.add_argument("--without", default="", help="leave out the cases that need one of these, separated by commas")
    parser.add_argument("--server-only", choices=(ORIGINAL, OURS), help="run one server only")
    parser.add_argument("--against", type=Path, help="recorded answers to compare with, in place of TorchServe")
    parser.add_argument("--record", action="store_true", help="write TorchServe's answers to answers.json")
    parser.add_argument("--work", type=Path, help="a folder for everything that is made (default: a temporary one)")
    parser.add_argument("--keep", action="store_true", help="keep that folder: archives, logs")
    parser.add_argument("--list", action="store_true", help="list the cases and what they are about, and end")
    options = parser.parse_args()
    for name in (ORIGINAL, OURS):
        setattr(options, name, Path(getattr(options, name)).resolve())
    if options.against and options.record:
        parser.error("--record writes what TorchServe answers now: not together with --against")
    if options.record and options.server_only == OURS:
        parser.error("--record needs TorchServe")
    return options


def run(options: argparse.Namespace, chosen: list[cases.Case], work: Path, report: Report) -> None:
    """Run the chosen cases and report them. Raises archives.ArchiveError."""
    names = [options.server_only] if options.server_only else [OURS] if options.against else [ORIGINAL, OURS]
    recorded: dict[str, Answers] = json.loads(options.against.read_text(encoding="utf-8")) if options.against else {}
    groups = groups_of(chosen)
    archives.make_files(chosen, work / "made")
    sides = [Side(name, options, work, groups) for name in names]
    for side in sides:
        side.build()
    fresh: dict[str, Answers] = {}
    try:
        for side in sides:
            side.start()
        for case in [case for group in groups for case in group]:
            try:
                got = [side.answers(case) for side in sides]
            except (server.ServerError, OSError) as why:
                report.fail(case, why)
                continue
            times = "  ".join("%s %5.1f s" % (side.name, side.seconds[case.name]) for side in sides)
            if names[0] == ORIGINAL:
                fresh[case.name] = got[0]
            if options.against:
                report.case(case, recorded.get(case.name, []), got[0], [], times)
            elif len(sides) == 2:
                report.case(case, got[0], got[1], compare_archives(case, *sides), times)
            else:
                show(case, got[0], times)
    finally:
        for side in sides:
            side.stop()
            for problem in side.problems:
                print("PROBLEM %s" % problem, flush=True)
            report.problems += len(side.problems) if side.name == OURS else 0
    if options.record:
        record(fresh)


def show(case: cases.Case, got: Answers, times: str) -> None:
    """Print the answers of a single server."""
    print("%s: %s  (%s)" % (case.name, case.clause, times))
    for index, answer in enumerate(got):
        print("    %s\n        %s" % (case.label(index), json.dumps(answer, ensure_ascii=False)))
    sys.stdout.flush()


def record(fresh: dict[str, Answers]) -> None:
    """Put answers into answers.json, beside those of the cases that were not run; those of cases that are no more go."""
    path = HERE / "answers.json"
    known: dict[str, Answers] = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
    there = {case.name for case in cases.read_all(HERE / "cases")}
    known = {name: value for name, value in {**known, **fresh}.items() if name in there}
    lines = []
    for name in sorted(known):
        each = ",\n".join("  " + json.dumps(answer, ensure_ascii=False, sort_keys=True) for answer in known[name])
        lines.append("%s: [\n%s\n ]" % (json.dumps(name), each))
    path.write_text("{\n " + ",\n ".join(lines) + "\n}\n", encoding="utf-8")
    print("recorded %d cases in %s" % (len(fresh), path))


def main() -> int:
    """Run the command line and give the exit status."""
    options = parse()
    report = Report(bool(options.against), options.server_only != ORIGINAL)
    began = time.monotonic()
    work: Path | None = None
    try:
        chosen = choose(options, report)
        if options.list:
            for case in chosen:
                needs = "  [%s]" % ", ".join(case.needs) if case.needs else ""
                print("%-34s %s%s" % (case.name, case.clause, needs))
            return 0
        # Unix sockets lie below, and their paths are short by law.
        work = (options.work or Path(tempfile.mkdtemp(prefix="corpus-"))).resolve()
        if options.work and work.exists() and any(work.iterdir()):
            print("--work %s is not empty" % work, file=sys.stderr)
            return 2
        run(options, chosen, work, report)
    except (cases.CaseError, archives.ArchiveError, OSError, ValueError) as why:
        print("compare.py: error: %s" % why, file=sys.stderr)
        return 2
    finally:
        if work and not options.keep:
            shutil.rmtree(work, ignore_errors=True)
        elif work:
            print("everything is in %s" % work)
    status = 0 if options.server_only and not options.against else report.end()
    print("%.0f s on %d CPUs" % (time.monotonic() - began, os.cpu_count() or 0))
    return status


if __name__ == "__main__":
    sys.exit(main())
