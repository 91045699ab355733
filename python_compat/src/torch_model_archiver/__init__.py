"""Another name of ``model_archiver``, after the distribution torch-model-archiver: the same modules, not copies of them."""

import importlib
import sys

from model_archiver import ModelArchiver, ModelArchiverConfig, __version__

__all__ = ["ModelArchiver", "ModelArchiverConfig", "__version__"]

_MODULES = (
    "arg_parser",
    "manifest_components",
    "manifest_components.manifest",
    "manifest_components.model",
    "model_archiver",
    "model_archiver_config",
    "model_archiver_error",
    "model_packaging",
    "model_packaging_utils",
    "version",
)

for _name in _MODULES:
    _module = importlib.import_module("model_archiver." + _name)
    sys.modules[__name__ + "." + _name] = _module
    if "." not in _name:
        globals()[_name] = _module
