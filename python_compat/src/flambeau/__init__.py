"""Flambeau, a model server: the Python side of it, and the commands that start it."""

from __future__ import annotations


def __getattr__(name: str) -> str:
    # The version is read when somebody asks: a worker that starts has no use for it.
    if name == "__version__":
        from flambeau.version import read

        return read()
    raise AttributeError("module %r has no attribute %r" % (__name__, name))
