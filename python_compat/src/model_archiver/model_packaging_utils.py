"""The steps of making a model archive, each usable by itself."""

from __future__ import annotations

import glob
import logging
import os
import re
import shutil
import sys
import tarfile
import tempfile
import zipfile
from typing import Any, Dict, Iterable, List, Mapping, Optional, Sequence, Set, Union

from flambeau.packing import writers
from flambeau.packing.errors import MissingFileError, NotPackableError
from flambeau.packing.plan import Entry, Plan, tree
from model_archiver.manifest_components.manifest import Manifest, RuntimeType
from model_archiver.manifest_components.model import Model
from model_archiver.model_archiver_config import ModelArchiverConfig
from model_archiver.model_archiver_error import ModelArchiverError

archiving_options = {"tgz": ".tar.gz", "no-archive": "", "zip-store": ".mar", "default": ".mar"}

# The handlers that the server brings along, each with what it is for: their names need no file.
model_handlers = {
    "base_handler": "anything",
    "text_classifier": "text",
    "image_classifier": "vision",
    "object_detector": "vision",
    "image_segmenter": "vision",
    "dali_image_classifier": "vision",
    "vllm_handler": "text",
    "trt_llm_handler": "text",
}

MODEL_SERVER_VERSION = "1.0"
MODEL_ARCHIVE_VERSION = "1.0"
MANIFEST_FILE_NAME = "MANIFEST.json"
MAR_INF = "MAR-INF"

_MANIFEST = MAR_INF + "/" + MANIFEST_FILE_NAME
_MODEL_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_\-.]*")
_NATIVE_HANDLERS = ("BaseHandler", "TorchScriptHandler")
_NATIVE_ENDINGS = {"linux": ".so", "darwin": ".dylib"}


class ModelExportUtils:
    """The steps of making a model archive, under TorchServe's names."""

    @staticmethod
    def get_archive_export_path(export_file_path: str, model_name: str, archive_format: Optional[str]) -> str:
        """Gives the path of the archive in a folder. Raises ModelArchiverError for an unknown format."""
        ending = archiving_options.get(archive_format or "default")
        if ending is None:
            raise ModelArchiverError(
                "archive format %s is unknown. Use one of: %s." % (archive_format, ", ".join(sorted(archiving_options)))
            )
        return os.path.join(export_file_path, model_name + ending)

    @staticmethod
    def check_mar_already_exists(
        model_name: str, export_file_path: Optional[str], overwrite: bool, archive_format: Optional[str] = "default"
    ) -> str:
        """Gives the folder for the archive (None: the current one). Raises ModelArchiverError if the archive is there already."""
        folder = os.getcwd() if export_file_path is None else export_file_path
        target = ModelExportUtils.get_archive_export_path(folder, model_name, archive_format)
        if os.path.exists(target):
            if not overwrite:
                raise ModelArchiverError("%s already exists. Use --force (-f) to replace it, or another --export-path." % target)
            logging.warning("Overwriting %s ...", target)
        return folder

    @staticmethod
    def find_unique(files: Iterable[str], suffix: str) -> Optional[str]:
        """Gives the one name that ends with suffix, None if none does. Raises ModelArchiverError if several do."""
        found = [name for name in files if name.endswith(suffix)]
        if len(found) > 1:
            raise ModelArchiverError(
                "%d files end with %s, but only one may: %s. Keep the one to use." % (len(found), suffix, ", ".join(found))
            )
        return found[0] if found else None

    @staticmethod
    def generate_model(modelcfg: Any) -> Model:
        """Gives the manifest's model part for a config, or for any object with its fields; what it lacks is left out."""
        if getattr(modelcfg, "handler", None) is None:
            raise ModelArchiverError(
                "no handler was given. Give --handler: a Python file, or one of %s." % ", ".join(model_handlers)
            )
        return Model(
            model_name=modelcfg.model_name,
            serialized_file=getattr(modelcfg, "serialized_file", None),
            model_file=getattr(modelcfg, "model_file", None),
            handler=modelcfg.handler,
            model_version=getattr(modelcfg, "version", None),
            requirements_file=getattr(modelcfg, "requirements_file", None),
            config_file=getattr(modelcfg, "config_file", None),
        )

    @staticmethod
    def generate_manifest_json(config: Union[ModelArchiverConfig, Any]) -> str:
        """Gives the text of the manifest for a config, or for any object with its fields."""
        runtime = getattr(config, "runtime", None) or RuntimeType.PYTHON.value
        return str(Manifest(runtime=runtime, model=ModelExportUtils.generate_model(config)))

    @staticmethod
    def clean_temp_files(temp_files: Iterable[str]) -> None:
        """Removes files."""
        for path in temp_files:
            os.remove(path)

    @staticmethod
    def make_dir(d: str) -> None:
        """Makes a folder, and those above it, unless it is there."""
        if not os.path.isdir(d):
            os.makedirs(d)

    @staticmethod
    def copy_artifacts(model_name: str, runtime: Optional[str], **kwargs: Optional[str]) -> str:
        """Copies the files of a model to a new temporary folder of its own and gives its path; the caller removes it.

        kwargs: model_file, serialized_file, handler, extra_files, requirements_file, config_file, each a path or None.
        Raises as ``package_model`` does, and leaves nothing behind then.
        """
        entries = plan_artifacts(runtime, kwargs, None)
        folder = tempfile.mkdtemp(prefix=model_name + ".")
        try:
            writers.copy_into(folder, entries)
        except BaseException:
            shutil.rmtree(folder, ignore_errors=True)
            raise
        return folder

    @staticmethod
    def archive(export_file: str, model_name: str, model_path: str, manifest: str, archive_format: str = "default") -> None:
        """Makes the archive of a folder model_path in the folder export_file, whole or not at all."""
        target = ModelExportUtils.get_archive_export_path(export_file, model_name, archive_format)
        entries = [entry for entry in tree(model_path, skip=target) if entry.name != _MANIFEST]
        write_archive(target, model_name, entries, manifest, archive_format)

    @staticmethod
    def archive_dir(path: str, dst: Union[str, zipfile.ZipFile, tarfile.TarFile], archive_format: str, model_name: str) -> None:
        """Adds what a folder holds to dst: an open zip or tar file, or the path of a folder for the format no-archive."""
        entries = tree(path)
        if isinstance(dst, tarfile.TarFile):
            for entry in entries:
                writers.add_to_tar(dst, entry, model_name)
        elif isinstance(dst, zipfile.ZipFile):
            for entry in entries:
                writers.add_to_zip(dst, entry)
        else:
            writers.copy_into(dst, entries)

    @staticmethod
    def directory_filter(directory: str, unwanted_dirs: Set[str]) -> bool:
        """Says whether a folder of this name is packed: not if it is unwanted or hidden."""
        return directory not in unwanted_dirs and not directory.startswith(".")

    @staticmethod
    def file_filter(current_file: str, files_to_exclude: Set[str]) -> bool:
        """Says whether a file is part of a model: not if it is excluded, a manifest, an archive or a cache."""
        files_to_exclude.add(MANIFEST_FILE_NAME)
        return current_file not in files_to_exclude and not current_file.endswith((".pyc", ".DS_Store", ".mar"))

    @staticmethod
    def check_model_name_regex_or_exit(model_name: str) -> None:
        """Raises ModelArchiverError unless the name can be a model's name."""
        if not _MODEL_NAME.fullmatch(model_name):
            raise ModelArchiverError(
                "--model-name %r cannot be used: a model's name has only letters, digits, '_', '-' and '.', and begins "
                "with a letter or a digit (regular expression ^%s$)." % (model_name, _MODEL_NAME.pattern)
            )

    @staticmethod
    def validate_inputs(model_name: str, export_path: Optional[str]) -> None:
        """Raises ModelArchiverError unless the name can be used and the folder for the archive (None: the current one) exists."""
        ModelExportUtils.check_model_name_regex_or_exit(model_name)
        folder = os.path.abspath(export_path or os.getcwd())
        if os.path.exists(folder) and not os.path.isdir(folder):
            raise ModelArchiverError(
                "--export-path %s is not a directory but a file. Give the folder for the archive." % export_path
            )
        if not os.path.isdir(folder):
            raise ModelArchiverError(
                "--export-path %s is not a directory: it does not exist. Make it first: mkdir -p %s" % (export_path, folder)
            )


def plan_artifacts(runtime: Optional[str], artifacts: Mapping[str, Optional[str]], target: Optional[str]) -> List[Entry]:
    """Decides which files go into an archive under which names.

    artifacts: paths by option (model_file, handler, extra_files, ...); a later one replaces an earlier one of the same name.
    target: path of the archive, which is never packed into itself; None for none.
    """
    plan = Plan(_MANIFEST, target)
    for key, value in artifacts.items():
        if not value:
            continue
        option = "--" + key.replace("_", "-")
        if key == "extra_files":
            _add_extra_files(plan, value, option)
        elif key == "handler":
            path = handler_file(value, runtime or RuntimeType.PYTHON.value)
            if path is not None:
                plan.add_file(path, option)
        else:
            plan.add_file(value, option)
    return plan.entries()


def handler_file(handler: str, runtime: str) -> Optional[str]:
    """Gives the path of the file that a --handler means, or None for a handler that the server brings along.

    ``svc.py``, ``svc``, ``svc:handle`` and ``svc.py:handle`` all mean svc.py. Raises MissingFileError if there is no such file.
    """
    native = runtime == RuntimeType.LSP.value
    if handler in (_NATIVE_HANDLERS if native else model_handlers):
        return None
    folder, base = os.path.split(handler)
    ending = _NATIVE_ENDINGS.get(sys.platform, "") if native else ".py"
    if ending in base and os.path.isfile(handler):
        return handler
    stem = base.split(":", 1)[0]
    path = os.path.join(folder, stem if ending in stem else stem + ending)
    if not os.path.exists(path):
        raise MissingFileError(
            "--handler %s: there is no file %s. Give the path of the handler's file (with :function if it is a function of "
            "another name than handle), or one of the built-in handlers: %s."
            % (handler, os.path.abspath(path), ", ".join(_NATIVE_HANDLERS if native else model_handlers))
        )
    return path


def write_archive(target: str, model_name: str, entries: Sequence[Entry], manifest: str, archive_format: str) -> None:
    """Writes an archive of the entries and the manifest in the given format, whole or not at all."""
    if archive_format == "tgz":
        writers.write_tar(target, entries, model_name, _MANIFEST, manifest)
    elif archive_format == "no-archive":
        writers.write_folder(target, entries, _MANIFEST, manifest)
    else:
        writers.write_zip(target, entries, _MANIFEST, manifest, compress=archive_format != "zip-store")


def _add_extra_files(plan: Plan, value: str, option: str) -> None:
    for item in value.split(","):
        # A name may really begin with a blank; most often the blank only follows the comma.
        path = item if os.path.exists(item) else item.strip()
        if not path:
            continue
        for found in _matches(path):
            if os.path.isdir(found):
                plan.add_contents(found, option)
            elif os.path.exists(found) and not os.path.isfile(found):
                raise NotPackableError(
                    "%s: %s is neither a file nor a folder. Copy its content to a file and give that." % (option, found)
                )
            else:
                plan.add_file(found, option)


def _matches(path: str) -> List[str]:
    """Gives what a path or a wildcard means, sorted. A file whose very name has the signs of a wildcard is meant by it, too."""
    if not (set(path) & set("*?") or ("[" in path and "]" in path)):
        return [path]
    found: Dict[str, None] = dict.fromkeys(sorted(glob.glob(path)))
    if os.path.lexists(path):
        found.setdefault(path)
    if not found:
        logging.warning("--extra-files: the wildcard %s matches nothing.", path)
    return list(found)
