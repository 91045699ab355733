"""Makes model archives: the command torch-model-archiver and the functions behind it."""

from __future__ import annotations

import logging
import sys
from typing import Any, Optional

from flambeau.packing.errors import PackingError
from model_archiver.arg_parser import ArgParser
from model_archiver.model_archiver_config import ModelArchiverConfig
from model_archiver.model_packaging_utils import ModelExportUtils, plan_artifacts, write_archive


def package_model(config: Any, manifest: str) -> None:
    """Makes the archive that config describes, with manifest (JSON text) in it. The archive appears whole or not at all.

    config: a ModelArchiverConfig, or any object with at least model_name and handler; what it lacks gets its default.
    Raises ModelArchiverError for a refused name, folder or overwriting, FileNotFoundError for a missing file,
    IsADirectoryError, FileExistsError or ValueError for inputs that cannot be packed, OSError when reading or writing fails.
    """
    try:
        _package(config, manifest)
    except PackingError as why:
        logging.error(why)
        raise


def generate_model_archive(config: Optional[ModelArchiverConfig] = None) -> None:
    """Makes the archive that config (None: the command line of the process) describes. Raises what ``package_model`` raises."""
    logging.basicConfig(format="%(levelname)s - %(message)s")
    if config is None:
        config = ArgParser.export_model_args_parser()
    package_model(config, manifest=ModelExportUtils.generate_manifest_json(config))


def main() -> int:
    """Runs the command line and gives its exit code: 0, or 1 after a line on stderr that says what was refused and why."""
    logging.basicConfig(format="%(levelname)s - %(message)s")
    config = ArgParser.export_model_args_parser()
    try:
        _package(config, ModelExportUtils.generate_manifest_json(config))
    except PackingError as why:
        logging.error(why)
        return 1
    except KeyboardInterrupt:
        logging.error("Interrupted: no archive was made.")
        return 130
    return 0


def _package(config: Any, manifest: str) -> None:
    name = config.model_name
    archive_format = getattr(config, "archive_format", None) or "default"
    folder = getattr(config, "export_path", None)
    ModelExportUtils.validate_inputs(name, folder)
    folder = ModelExportUtils.check_mar_already_exists(name, folder, getattr(config, "force", False), archive_format)
    target = ModelExportUtils.get_archive_export_path(folder, name, archive_format)
    entries = plan_artifacts(
        getattr(config, "runtime", None),
        {
            "model_file": getattr(config, "model_file", None),
            "serialized_file": getattr(config, "serialized_file", None),
            "handler": config.handler,
            "extra_files": getattr(config, "extra_files", None),
            "requirements_file": getattr(config, "requirements_file", None),
            "config_file": getattr(config, "config_file", None),
        },
        target,
    )
    write_archive(target, name, entries, manifest, archive_format)
    logging.info("Exported model %s to %s", name, target)


if __name__ == "__main__":
    sys.exit(main())
