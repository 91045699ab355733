"""Packs a model's files into an archive (.mar, .tar.gz or a folder) that TorchServe and Flambeau load."""

from model_archiver.model_archiver import ModelArchiver
from model_archiver.model_archiver_config import ModelArchiverConfig
from model_archiver.version import __version__

__all__ = ["ModelArchiver", "ModelArchiverConfig", "__version__"]
