"""Packs a workflow's specification and functions into a .war archive that TorchServe and Flambeau load."""

from workflow_archiver.version import __version__

__all__ = ["__version__"]
