"""The archiver as a class, for programs that make archives."""

from __future__ import annotations

from model_archiver.model_archiver_config import ModelArchiverConfig
from model_archiver.model_packaging import generate_model_archive


class ModelArchiver:
    """Makes model archives."""

    @staticmethod
    def generate_model_archive(config: ModelArchiverConfig) -> None:
        """Makes the archive that config describes. Raises what ``package_model`` raises."""
        generate_model_archive(config)
