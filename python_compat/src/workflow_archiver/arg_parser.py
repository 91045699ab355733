"""The command line of torch-workflow-archiver."""

from __future__ import annotations

import argparse
import os

_EXAMPLE = """\
example:
  torch-workflow-archiver --workflow-name dog_breed --spec-file workflow.yaml --handler functions.py --export-path wf_store
"""


class ArgParser:
    """Reads the command line of torch-workflow-archiver, whose flags are TorchServe's."""

    @staticmethod
    def workflow_archiver_args_parser() -> argparse.ArgumentParser:
        """Gives the parser of the command line."""
        parser = argparse.ArgumentParser(
            prog="torch-workflow-archiver",
            description="Packs a workflow's specification and functions into <workflow-name>.war for a workflow store.",
            epilog=_EXAMPLE,
            formatter_class=argparse.RawTextHelpFormatter,
        )
        add = parser.add_argument
        add("--workflow-name", required=True, help="name of the workflow; the archive is named after it")
        add("--spec-file", required=True, help="YAML file with the workflow's models and its graph (dag)")
        add("--handler", help="Python file with the functions of the graph; every workflow needs one")
        add("--export-path", default=os.getcwd(), help="existing folder for the archive (default: the current folder)")
        add("-f", "--force", action="store_true", help="replace an archive that is there already")
        add("--extra-files", help="more files, separated by commas (no folders, no wildcards)")
        return parser
