"""The version of torch-model-archiver whose archives and interface this package has; manifests carry it."""

from __future__ import annotations

import os

version_path = os.path.join(os.path.dirname(os.path.abspath(__file__)), "version.txt")
with open(version_path, encoding="utf-8") as _stream:
    __version__ = _stream.read().strip()
