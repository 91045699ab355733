"""torchrun, run without the model's folder on its path: a file json.py of the model's would be imported in place of Python's."""

from __future__ import annotations

import importlib
import os
import sys

from flambeau.worker import paths


def main() -> None:
    """Run torchrun with the arguments after the first."""
    installed = os.environ.get(paths.INSTALLED)
    if installed:
        sys.path.insert(0, installed)  # the model's requirements may name the torch that it wants
    sys.argv[:] = ["torchrun"] + sys.argv[2:]
    importlib.import_module("torch.distributed.run").main()
