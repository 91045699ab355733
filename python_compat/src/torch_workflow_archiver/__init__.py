"""Another name of ``workflow_archiver``, after the distribution torch-workflow-archiver: the same modules, not copies."""

import importlib
import sys

from workflow_archiver import __version__

__all__ = ["__version__"]

_MODULES = (
    "arg_parser",
    "manifest_components",
    "manifest_components.manifest",
    "manifest_components.workflow",
    "version",
    "workflow_archiver_error",
    "workflow_packaging",
    "workflow_packaging_utils",
)

for _name in _MODULES:
    _module = importlib.import_module("workflow_archiver." + _name)
    sys.modules[__name__ + "." + _name] = _module
    if "." not in _name:
        globals()[_name] = _module
