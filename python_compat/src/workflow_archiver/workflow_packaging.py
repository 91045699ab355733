"""Makes workflow archives: the command torch-workflow-archiver and the functions behind it."""

from __future__ import annotations

import logging
import sys
from typing import Any

from flambeau.packing.errors import PackingError
from workflow_archiver.arg_parser import ArgParser
from workflow_archiver.workflow_archiver_error import WorkflowArchiverError
from workflow_archiver.workflow_packaging_utils import WorkflowExportUtils, plan_artifacts, write_archive


def package_workflow(args: Any, manifest: str) -> None:
    """Makes the archive that args describes, with manifest (JSON text) in it. The archive appears whole or not at all.

    args: an object with workflow_name, spec_file and handler, and perhaps export_path, extra_files and force.
    Exits with 1 for a refused name, folder or overwriting, as TorchServe's does; raises FileNotFoundError for a missing file,
    OSError when reading or writing fails.
    """
    try:
        _package(args, manifest)
    except WorkflowArchiverError as why:
        logging.error(why)
        sys.exit(1)


def generate_workflow_archive() -> None:
    """Makes the archive that the command line of the process describes."""
    logging.basicConfig(format="%(levelname)s - %(message)s")
    args = ArgParser.workflow_archiver_args_parser().parse_args()
    package_workflow(args, manifest=WorkflowExportUtils.generate_manifest_json(args))


def main() -> int:
    """Runs the command line and gives its exit code: 0, or 1 after a line on stderr that says what was refused and why."""
    logging.basicConfig(format="%(levelname)s - %(message)s")
    args = ArgParser.workflow_archiver_args_parser().parse_args()
    try:
        _package(args, WorkflowExportUtils.generate_manifest_json(args))
    except PackingError as why:
        logging.error(why)
        return 1
    except KeyboardInterrupt:
        logging.error("Interrupted: no archive was made.")
        return 130
    return 0


def _package(args: Any, manifest: str) -> None:
    name = args.workflow_name
    folder = getattr(args, "export_path", None)
    WorkflowExportUtils.validate_inputs(name, folder)
    folder = WorkflowExportUtils.check_war_already_exists(name, folder, getattr(args, "force", False))
    target = WorkflowExportUtils.get_archive_export_path(folder, name)
    entries = plan_artifacts(
        [("--spec-file", args.spec_file), ("--handler", args.handler), ("--extra-files", getattr(args, "extra_files", None))],
        target,
    )
    write_archive(target, entries, manifest)
    logging.info("Exported workflow %s to %s", name, target)


if __name__ == "__main__":
    sys.exit(main())
