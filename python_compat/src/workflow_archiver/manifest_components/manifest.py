"""The manifest of a workflow archive, ``WAR-INF/MANIFEST.json``."""

from __future__ import annotations

import json
from datetime import datetime
from typing import Any, Dict

from workflow_archiver.manifest_components.workflow import Workflow
from workflow_archiver.version import __version__


class Manifest:
    """The whole manifest. Its ``str()`` is the text of the file: JSON with an indent of two, in TorchServe's order of keys."""

    def __init__(self, workflow: Workflow) -> None:
        self.creation_time = datetime.now().strftime("%d/%m/%Y %H:%M:%S")
        self.workflow = workflow
        self.archiver_version = __version__
        self.manifest_dict = self.__to_dict__()

    def __to_dict__(self) -> Dict[str, Any]:
        return {
            "createdOn": self.creation_time,
            "workflow": self.workflow.__to_dict__(),
            "archiverVersion": self.archiver_version,
        }

    def __str__(self) -> str:
        return json.dumps(self.manifest_dict, indent=2)

    __repr__ = __str__
