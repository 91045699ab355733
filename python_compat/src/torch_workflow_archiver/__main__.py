"""Runs torch-workflow-archiver as ``python -m torch_workflow_archiver``."""

import sys

from workflow_archiver.workflow_packaging import main

if __name__ == "__main__":
    sys.exit(main())
