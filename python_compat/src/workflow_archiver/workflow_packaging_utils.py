"""The steps of making a workflow archive, each usable by itself."""

from __future__ import annotations

import logging
import os
import re
import shutil
import tempfile
import zipfile
from typing import Any, Iterable, List, Optional, Sequence, Set, Tuple

from flambeau.packing import writers
from flambeau.packing.plan import Entry, Plan, tree
from workflow_archiver.manifest_components.manifest import Manifest
from workflow_archiver.manifest_components.workflow import Workflow
from workflow_archiver.workflow_archiver_error import WorkflowArchiverError

MANIFEST_FILE_NAME = "MANIFEST.json"
WAR_INF = "WAR-INF"

_MANIFEST = WAR_INF + "/" + MANIFEST_FILE_NAME
_WORKFLOW_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_\-.]*")


class WorkflowExportUtils:
    """The steps of making a workflow archive, under TorchServe's names."""

    @staticmethod
    def get_archive_export_path(export_file_path: str, workflow_name: str) -> str:
        """Gives the path of the archive in a folder."""
        return os.path.join(export_file_path, workflow_name + ".war")

    @staticmethod
    def check_war_already_exists(workflow_name: str, export_file_path: Optional[str], overwrite: bool) -> str:
        """Gives the folder for the archive (None: the current one). Raises WorkflowArchiverError if it is there already."""
        folder = os.getcwd() if export_file_path is None else export_file_path
        target = WorkflowExportUtils.get_archive_export_path(folder, workflow_name)
        if os.path.exists(target):
            if not overwrite:
                raise WorkflowArchiverError(
                    "%s already exists. Use --force (-f) to replace it, or another --export-path." % target
                )
            logging.warning("Overwriting %s ...", target)
        return folder

    @staticmethod
    def generate_workflow(workflow_args: Any) -> Workflow:
        """Gives the manifest's workflow part. Raises WorkflowArchiverError without a handler."""
        if not getattr(workflow_args, "handler", None):
            raise WorkflowArchiverError(
                "no --handler was given. Give the Python file that holds the functions of the workflow's graph."
            )
        return Workflow(
            workflow_name=workflow_args.workflow_name, spec_file=workflow_args.spec_file, handler=workflow_args.handler
        )

    @staticmethod
    def generate_manifest_json(args: Any) -> str:
        """Gives the text of the manifest."""
        return str(Manifest(workflow=WorkflowExportUtils.generate_workflow(args)))

    @staticmethod
    def clean_temp_files(temp_files: Iterable[str]) -> None:
        """Removes files."""
        for path in temp_files:
            os.remove(path)

    @staticmethod
    def make_dir(d: str) -> None:
        """Makes a folder, and those above it, unless it is there."""
        if not os.path.isdir(d):
            os.makedirs(d)

    @staticmethod
    def copy_artifacts(workflow_name: str, artifact_files: Sequence[Optional[str]]) -> str:
        """Copies files (each item: paths separated by commas, or None) to a new temporary folder; the caller removes it."""
        entries = plan_artifacts([("--extra-files", item) for item in artifact_files], None)
        folder = tempfile.mkdtemp(prefix=workflow_name + ".")
        try:
            writers.copy_into(folder, entries)
        except BaseException:
            shutil.rmtree(folder, ignore_errors=True)
            raise
        return folder

    @staticmethod
    def archive(export_file: str, workflow_name: str, workflow_path: str, manifest: str) -> None:
        """Makes the archive of a folder workflow_path in the folder export_file, whole or not at all."""
        target = WorkflowExportUtils.get_archive_export_path(export_file, workflow_name)
        write_archive(target, [entry for entry in tree(workflow_path, skip=target) if entry.name != _MANIFEST], manifest)

    @staticmethod
    def archive_dir(path: str, dst: zipfile.ZipFile) -> None:
        """Adds what a folder holds to an open zip file."""
        for entry in tree(path):
            writers.add_to_zip(dst, entry)

    @staticmethod
    def directory_filter(directory: str, unwanted_dirs: Set[str]) -> bool:
        """Says whether a folder of this name is packed: not if it is unwanted or hidden."""
        return directory not in unwanted_dirs and not directory.startswith(".")

    @staticmethod
    def file_filter(current_file: str, files_to_exclude: Set[str]) -> bool:
        """Says whether a file is part of a workflow: not if it is excluded, a manifest, an archive or a cache."""
        files_to_exclude.add(MANIFEST_FILE_NAME)
        return current_file not in files_to_exclude and not current_file.endswith((".pyc", ".DS_Store", ".war"))

    @staticmethod
    def check_workflow_name_regex_or_exit(workflow_name: str) -> None:
        """Raises WorkflowArchiverError unless the name can be a workflow's name."""
        if not _WORKFLOW_NAME.fullmatch(workflow_name):
            raise WorkflowArchiverError(
                "--workflow-name %r cannot be used: a workflow's name has only letters, digits, '_', '-' and '.', and begins "
                "with a letter or a digit (regular expression ^%s$)." % (workflow_name, _WORKFLOW_NAME.pattern)
            )

    @staticmethod
    def validate_inputs(workflow_name: str, export_path: Optional[str]) -> None:
        """Raises WorkflowArchiverError unless the name can be used and the folder for the archive (None: the current) exists."""
        WorkflowExportUtils.check_workflow_name_regex_or_exit(workflow_name)
        folder = os.path.abspath(export_path or os.getcwd())
        if os.path.exists(folder) and not os.path.isdir(folder):
            raise WorkflowArchiverError(
                "--export-path %s is not a directory but a file. Give the folder for the archive." % export_path
            )
        if not os.path.isdir(folder):
            raise WorkflowArchiverError(
                "--export-path %s is not a directory: it does not exist. Make it first: mkdir -p %s" % (export_path, folder)
            )


def plan_artifacts(options: Iterable[Tuple[str, Optional[str]]], target: Optional[str]) -> List[Entry]:
    """Decides which files go into an archive: pairs of a flag and its paths, separated by commas. target: the archive's path."""
    plan = Plan(_MANIFEST, target)
    for option, value in options:
        for item in (value or "").split(","):
            path = item if os.path.exists(item) else item.strip()
            if path:
                plan.add_file(path, option)
    return plan.entries()


def write_archive(target: str, entries: Sequence[Entry], manifest: str) -> None:
    """Writes an archive of the entries and the manifest, whole or not at all."""
    writers.write_zip(target, entries, _MANIFEST, manifest)
