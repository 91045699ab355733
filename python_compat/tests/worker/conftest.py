"""Isolation of the worker's tests: loading a model changes the process."""

from __future__ import annotations

import logging
import os
import sys
from pathlib import Path
from typing import Iterator

import pytest
from hypothesis import settings

sys.path.insert(0, str(Path(__file__).parent))

from workerkit import Session

settings.register_profile("worker", deadline=None)  # the machine may be busy
settings.load_profile("worker")


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "torch: needs torch and torchvision; skipped only where they are not installed")


@pytest.hookimpl(hookwrapper=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> Iterator[None]:
    """Streams are replaced when the test itself runs: pytest has put its own in place after the fixtures were made."""
    if "pipes" in pyfuncitem.funcargs:
        pyfuncitem.funcargs["pipes"].install()
    yield


@pytest.fixture(autouse=True)
def restored() -> Iterator[None]:
    """Everything that a load changes, as it was before."""
    path, modules, environ, cwd = list(sys.path), dict(sys.modules), dict(os.environ), os.getcwd()
    root = logging.getLogger()
    handlers, level = list(root.handlers), root.level
    stdout, stderr = sys.stdout, sys.stderr
    yield
    sys.path[:] = path
    for name in [name for name in sys.modules if name not in modules]:
        # The packages of the distribution, and what they import, may stay; a model's own modules may not.
        if name.split(".")[0] not in ("flambeau", "ts", "numpy", "torch", "torchvision", "PIL", "captum", "yaml"):
            file = getattr(sys.modules[name], "__file__", None) or ""
            if "pytest-of-" in file:
                del sys.modules[name]
    sys.modules.update(modules)
    os.environ.clear()
    os.environ.update(environ)
    os.chdir(cwd)
    root.handlers[:], root.level = handlers, level
    sys.stdout, sys.stderr = stdout, stderr


@pytest.fixture
def session() -> Session:
    """A worker that has loaded nothing yet."""
    return Session()
