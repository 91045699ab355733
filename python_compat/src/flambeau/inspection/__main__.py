"""Reads a model's archive for the server: ``<python> -B <packages>/flambeau/inspection/__main__.py``, a question on stdin.

It is run by the interpreter that the model would run on, in a folder that is not the model's. The question and the answer are
JSON objects (docs/check.md). None of the model's code is run, and its folder is never on the module search path.
"""

import sys

if __name__ == "__main__" and not (sys.flags.isolated or getattr(sys.flags, "safe_path", False)):
    del sys.path[0]  # this folder: its modules are no top-level ones

import os
from importlib.machinery import PathFinder

_PACKAGES = os.path.dirname(os.path.dirname(os.path.dirname(os.path.realpath(__file__))))


class PackageFinder:
    """Finds `flambeau` and `ts` beside this file, as the worker does."""

    ours = True

    @staticmethod
    def find_spec(fullname, path=None, target=None):  # type: ignore[no-untyped-def]
        """The import system's question; answered for the two top-level names."""
        return PathFinder.find_spec(fullname, [_PACKAGES]) if fullname in ("flambeau", "ts") else None


LIMIT = 8.0  # seconds


def main() -> int:
    """Answer the question on stdin; give the exit status."""
    import json
    import signal

    from flambeau.inspection import environment
    from flambeau.inspection.archive import Inspection

    signal.alarm(int(2 * LIMIT))  # should the server be gone, or the parser never come back
    question = json.load(sys.stdin)
    path = [os.path.abspath(entry) for entry in sys.path if entry]
    packages = [*(question.get("python_path") or []), *path]
    answer = {
        "python": environment.describe(),
        "distributions": environment.distributions(packages),
        "library_folders": environment.library_folders(packages),
        "torch_format": environment.torch_format(packages),
    }
    inspection = Inspection(question, _PACKAGES, path, float(question.get("limit") or LIMIT))
    inspection.run()
    answer.update(inspection.answer())
    # Names of files may be no text at all.
    sys.stdout.write(json.dumps(answer, ensure_ascii=True))
    return 0


if __name__ == "__main__":
    sys.meta_path.insert(0, PackageFinder)
    sys.exit(main())
