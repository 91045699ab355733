"""The part of the manifest that describes the model."""

from __future__ import annotations

import json
import os
from typing import Any, Dict, Optional


class Model:
    """The ``model`` object of the manifest: names without folders, in TorchServe's order; what is not given is left out."""

    def __init__(
        self,
        model_name: str,
        serialized_file: Optional[str],
        handler: str,
        model_file: Optional[str] = None,
        model_version: Optional[str] = None,
        extensions: Any = None,
        requirements_file: Optional[str] = None,
        config_file: Optional[str] = None,
    ) -> None:
        self.model_name = model_name
        self.serialized_file = os.path.basename(serialized_file) if serialized_file else None
        self.model_file = model_file
        self.model_version = model_version
        self.extensions = extensions
        self.handler = os.path.basename(handler)
        self.requirements_file = requirements_file
        self.config_file = os.path.basename(config_file) if config_file else None
        self.model_dict = self.__to_dict__()

    def __to_dict__(self) -> Dict[str, Any]:
        optional = {
            "serializedFile": self.serialized_file,
            "modelFile": os.path.basename(self.model_file or ""),
            "modelVersion": self.model_version,
            "extensions": self.extensions,
            "requirementsFile": os.path.basename(self.requirements_file or ""),
            "configFile": self.config_file,
        }
        order = (
            "modelName",
            "serializedFile",
            "handler",
            "modelFile",
            "modelVersion",
            "extensions",
            "requirementsFile",
            "configFile",
        )
        values = {key: value for key, value in optional.items() if value}
        values.update(modelName=self.model_name, handler=self.handler)
        return {key: values[key] for key in order if key in values}

    def __str__(self) -> str:
        return json.dumps(self.model_dict)

    __repr__ = __str__
