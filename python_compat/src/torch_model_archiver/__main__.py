"""Runs torch-model-archiver as ``python -m torch_model_archiver``."""

import sys

from model_archiver.model_packaging import main

if __name__ == "__main__":
    sys.exit(main())
