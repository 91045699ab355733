"""What all tests of the archivers need: the checkout's packages in programs that they start, and one umask."""

import os
from pathlib import Path

import pytest


@pytest.fixture(autouse=True)
def environment(monkeypatch):
    """Lets started programs import the packages of this checkout, without leaving caches in it."""
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).resolve().parents[2] / "src"))
    monkeypatch.setenv("PYTHONDONTWRITEBYTECODE", "1")
    before = os.umask(0o022)
    yield
    os.umask(before)
