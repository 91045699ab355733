"""The part of the manifest that describes the workflow."""

from __future__ import annotations

import json
import os
from typing import Dict


class Workflow:
    """The ``workflow`` object of the manifest: names without folders, in TorchServe's order."""

    def __init__(self, workflow_name: str, spec_file: str, handler: str) -> None:
        self.workflow_name = workflow_name
        self.spec_file = os.path.basename(spec_file)
        self.handler = os.path.basename(handler)
        self.workflow_dict = self.__to_dict__()

    def __to_dict__(self) -> Dict[str, str]:
        return {"workflowName": self.workflow_name, "specFile": self.spec_file, "handler": self.handler}

    def __str__(self) -> str:
        return json.dumps(self.workflow_dict)

    __repr__ = __str__
