"""The options of one archive, for use from Python."""

from __future__ import annotations

import os
from argparse import Namespace
from dataclasses import MISSING, dataclass, field, fields
from typing import Any, Dict, Optional

from model_archiver.manifest_components.manifest import RuntimeType


@dataclass
class ModelArchiverConfig:
    """What to pack. The fields are the command line's flags, with its defaults.

    model_name: name of the model and of the archive's file.
    handler: path of the handler's Python file, ``file:function``, or the name of a built-in handler.
    version: the model's version.
    serialized_file, model_file, requirements_file, config_file: a path each, or None.
    extra_files: paths of files and folders separated by commas; wildcards are allowed.
    runtime: python, python3 or LSP.
    export_path: existing folder for the archive. Default: the current folder.
    archive_format: default (.mar), zip-store (.mar, not compressed), tgz (.tar.gz) or no-archive (a folder).
    force: replace an archive that is there already.
    """

    model_name: str
    handler: str
    version: str
    serialized_file: Optional[str] = None
    model_file: Optional[str] = None
    extra_files: Optional[str] = None
    runtime: str = RuntimeType.PYTHON.value
    export_path: str = field(default_factory=os.getcwd)
    archive_format: str = "default"
    force: bool = False
    requirements_file: Optional[str] = None
    config_file: Optional[str] = None

    @classmethod
    def from_args(cls, args: Namespace) -> ModelArchiverConfig:
        """Makes a config of parsed arguments; what they lack gets its default. Raises AttributeError for a required one."""
        values: Dict[str, Any] = {}
        for item in fields(cls):
            if hasattr(args, item.name):
                values[item.name] = getattr(args, item.name)
            elif item.default is MISSING and item.default_factory is MISSING:
                raise AttributeError("the arguments have no %s, which an archive needs" % item.name)
        return cls(**values)
