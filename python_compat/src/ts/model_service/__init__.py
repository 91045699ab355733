"""Handlers in the manner of MXNet Model Server, TorchServe's ancestor."""

from . import model_service  # noqa: F401
