"""Start of a Python worker: ``<python> <packages>/flambeau/worker/__main__.py``, in the model's folder.

It is run by path, with whatever interpreter the model wants: that interpreter needs nothing installed, this package included.
"""

import sys

if sys.version_info < (3, 8):  # noqa: UP036  # the interpreter is the model's choice, not this package's
    sys.exit("worker cannot start: %s is Python %d.%d, handlers need 3.8 or later" % ((sys.executable,) + sys.version_info[:2]))

if __name__ == "__main__":
    # Python put this folder first, where worker/logs.py and its like would hide modules of the same name from the handler.
    if not (sys.flags.isolated or getattr(sys.flags, "safe_path", False)):
        del sys.path[0]

import os

if __name__ == "__main__":
    # An empty entry of PYTHONPATH means the working folder, the model's: it must not shadow what the worker itself imports.
    _model_folder = os.getcwd()
    sys.path[:] = [entry for entry in sys.path if entry not in ("", ".", _model_folder)]

from importlib.machinery import PathFinder

_PACKAGES = os.path.dirname(os.path.dirname(os.path.dirname(os.path.realpath(__file__))))


class PackageFinder:
    """Finds `flambeau` and `ts` beside this file, and nothing else, wherever the interpreter would look for them.

    The server, the worker and `ts` are one release: another `ts` (TorchServe's own, a model's) would not speak its protocol.
    """

    @staticmethod
    def find_spec(fullname, path=None, target=None):  # type: ignore[no-untyped-def]
        """The import system's question; answered for the two top-level names, submodules are found from there."""
        if fullname in ("flambeau", "ts"):
            return PathFinder.find_spec(fullname, [_PACKAGES])
        return None


# Also when this file is run again under another name, as multiprocessing does in the processes that it spawns.
if not any(getattr(finder, "__name__", "") == "PackageFinder" for finder in sys.meta_path):
    sys.meta_path.insert(0, PackageFinder)

if __name__ == "__main__":
    if sys.argv[1:] == ["run"]:  # `flambeau run`: the same Python, the same modules, no server
        from flambeau.runner.process import main
    elif sys.argv[1:2] == ["torchrun"]:  # flambeau.parallel.leader starts it, and it starts the ranks
        from flambeau.parallel.torchrun import main
    elif sys.argv[1:2] == ["rank"]:
        from flambeau.parallel.rank import main
    else:
        from flambeau.worker.process import main

    main()
