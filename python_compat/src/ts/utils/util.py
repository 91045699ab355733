"""Helpers for handlers: labels, model configuration, classes of a module, and the exception that picks its HTTP status."""

from __future__ import annotations

import enum
import functools
import json
import logging
import os
import re
import warnings

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import ModuleType
    from typing import Any, Callable, Dict, Iterable, List, Optional, Sequence, Type

logger = logging.getLogger(__name__)

# HTML tags and entities.
CLEANUP_REGEX = re.compile(r"<.*?>|&(#x[0-9a-f]{1,6}|#[0-9]{1,6}|[a-z0-9]+);")


class PT2Backend(str, enum.Enum):
    """The names that torch.compile's backend may have in a model's configuration."""

    EAGER = "eager"
    AOT_EAGER = "aot_eager"
    INDUCTOR = "inductor"
    NVFUSER = "nvfuser"
    AOT_NVFUSER = "aot_nvfuser"
    AOT_CUDAGRAPHS = "aot_cudagraphs"
    OFI = "ofi"
    FX2TRT = "fx2trt"
    ONNXRT = "onnxrt"
    IPEX = "ipex"
    TORCHXLA_TRACE_ONCE = "torchxla_trace_once"
    OPENVINO = "openvino"
    TENSORRT = "tensorrt"
    HPU_BACKEND = "hpu_backend"


class PredictionException(Exception):
    """Raised by a handler, it answers every request of the batch with `message` and HTTP status `error_code`."""

    def __init__(self, message: str, error_code: int = 500) -> None:
        super().__init__(message)
        self.message = message
        self.error_code = error_code

    def __str__(self) -> str:
        return "%s : %s" % (self.message, self.error_code)


def list_classes_from_module(module: ModuleType, parent_class: Optional[Type[Any]] = None) -> List[Any]:
    """The classes that `module` defines itself (not those it imports), in the order of their names there.

    With `parent_class` only those that derive from it.
    """
    found = []
    for name in sorted(dir(module)):
        value = getattr(module, name, None)
        if not isinstance(value, type) or value.__module__ != module.__name__:
            continue
        if parent_class is None or issubclass(value, parent_class):
            found.append(value)
    return found


def check_valid_pt2_backend(backend: str) -> bool:
    """Whether `backend` is one of PT2Backend; logs a warning if not."""
    if any(backend == known.value for known in PT2Backend):
        return True
    logger.warning("%s is not a supported backend", backend)
    return False


def load_label_mapping(mapping_file_path: str) -> Optional[Dict[str, str]]:
    """Read index_to_name.json: class index (a str) -> label. None, with a warning, when there is no such file.

    A value may be a list, whose last element is the label; {"object_type_names": [...]} gives the labels in their order.
    Raises TypeError when the file holds anything else.
    """
    if not os.path.isfile(mapping_file_path):
        logger.warning("%r is missing. Inference output will not include class name.", mapping_file_path)
        return None
    with open(mapping_file_path, encoding="utf-8") as file:
        mapping = json.load(file)
    if not isinstance(mapping, dict):
        raise TypeError("%s must hold a JSON object: class index -> label" % mapping_file_path)
    names = mapping.get("object_type_names")
    if isinstance(names, list):
        return {str(index): name for index, name in enumerate(names)}
    for index, value in mapping.items():
        label = value[-1] if isinstance(value, list) else value
        if not isinstance(label, str):
            raise TypeError("%s: the label of class %s must be a str or a list of str" % (mapping_file_path, index))
        mapping[index] = label
    return mapping


def map_class_to_label(
    probs: List[Sequence[Any]],
    mapping: Optional[Dict[str, str]] = None,
    lbl_classes: Optional[Iterable[Sequence[Any]]] = None,
) -> List[Dict[str, Any]]:
    """Give, for each row of `probs`, a dict label -> probability.

    `lbl_classes` has the class of each probability, row by row; without it the classes are 0, 1, ... . A label is
    mapping[str(class)], or str(class) without a mapping. Raises TypeError when `probs` is not a list or `mapping` not a dict,
    KeyError when the mapping lacks a class.
    """
    if not isinstance(probs, list):
        raise TypeError("Convert classes to list before doing mapping")
    if mapping is not None and not isinstance(mapping, dict):
        raise TypeError("Mapping must be a dict")
    if lbl_classes is None:
        lbl_classes = [range(len(probs[0]))] * len(probs)

    def label(index: Any) -> str:
        return str(index) if mapping is None else mapping[str(index)]

    return [{label(index): prob for index, prob in zip(classes, row)} for classes, row in zip(lbl_classes, probs)]


def get_yaml_config(yaml_file_path: str) -> Any:
    """What a YAML file holds; None for an empty one.

    PyYAML reads it when it is installed, else a reader of our own for plain maps, lists and values.
    """
    with open(yaml_file_path, encoding="utf-8") as file:
        text = file.read()
    try:
        import yaml
    except ImportError:
        from flambeau.worker.plainyaml import parse

        return parse(text, yaml_file_path)
    return yaml.safe_load(text)


def deprecated(
    version: Any, replacement: str = "", klass: Type[Warning] = PendingDeprecationWarning
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Decorator for what goes away in `version` and is replaced by `replacement`: each call warns with category `klass`."""

    def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def call(*args: Any, **kwargs: Any) -> Any:
            text = "%s is deprecated in %s and moved to %s" % (function.__name__, version, replacement)
            warnings.warn(text, klass, stacklevel=2)
            return function(*args, **kwargs)

        return call

    return decorate
