"""The manifest of a model archive, ``MAR-INF/MANIFEST.json``."""

from __future__ import annotations

import json
from datetime import datetime
from enum import Enum
from typing import Any, Dict

from model_archiver.manifest_components.model import Model
from model_archiver.version import __version__


class RuntimeType(Enum):
    """What runs a model's handler."""

    PYTHON = "python"
    PYTHON3 = "python3"
    LSP = "LSP"


class Manifest:
    """The whole manifest. Its ``str()`` is the text of the file: JSON with an indent of two, in TorchServe's order of keys.

    Raises ValueError for a runtime that ``RuntimeType`` does not list.
    """

    def __init__(self, runtime: str, model: Model) -> None:
        self.creation_time = datetime.now().strftime("%d/%m/%Y %H:%M:%S")
        self.runtime = RuntimeType(runtime)
        self.model = model
        self.archiver_version = __version__
        self.manifest_dict = self.__to_dict__()

    def __to_dict__(self) -> Dict[str, Any]:
        return {
            "createdOn": self.creation_time,
            "runtime": self.runtime.value,
            "model": self.model.__to_dict__(),
            "archiverVersion": self.archiver_version,
        }

    def __str__(self) -> str:
        return json.dumps(self.manifest_dict, indent=2)

    __repr__ = __str__
