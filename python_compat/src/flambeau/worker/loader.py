"""Finds a model's handler: module, function or class, envelope."""

from __future__ import annotations

import importlib
import importlib.util
import json
import logging
import os
import sys

from flambeau.worker.advice import python_files

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import ModuleType
    from typing import Any, Callable, List, Optional, Tuple

    EntryPoint = Callable[[Any, Any], Any]
    Initialize = Callable[[Any], Any]

log = logging.getLogger(__name__)

_BUILT_IN = "ts.torch_handler"
_ENVELOPES = "ts.torch_handler.request_envelope"


class HandlerError(ValueError):
    """The handler's name or its module gives no entry point, or more than one."""


def read_manifest(model_dir: str) -> Any:
    """What MAR-INF/MANIFEST.json says, None when the model has none."""
    path = os.path.join(model_dir, "MAR-INF", "MANIFEST.json")
    if not os.path.exists(path):
        return None
    with open(path, encoding="utf-8") as file:
        return json.load(file)


def resolve(handler: str, model_dir: str) -> Tuple[EntryPoint, Initialize]:
    """Import what `handler` names and give its entry point and its initialization.

    `handler` is "file.py", "file.py:function" (both with or without ".py" and folders) or the name of a built-in handler.
    Without a function the module's `handle` is taken, else the one class that has a `handle` method.
    Raises whatever the import raises, or HandlerError.
    """
    if not handler:
        raise HandlerError("the model names no handler: neither its manifest nor the registration has one")
    module = _import(handler, model_dir)
    function = handler.partition(":")[2]
    if hasattr(module, function or "handle"):
        entry = getattr(module, function or "handle")
        if isinstance(entry, type) and hasattr(entry, "handle"):
            return _from_class(entry)
        return entry, lambda context: entry(None, context)
    chosen = _choose_class(module, handler)
    absent = ""
    if function:
        absent = "handler %r: there is no %r in %s, class %s is used" % (handler, function, module.__name__, chosen.__name__)
        log.warning("%s", absent)
    return _from_class(chosen, absent)


def wrap(entry: EntryPoint, envelope: str) -> EntryPoint:
    """Put a request envelope around an entry point: the first class of ts.torch_handler.request_envelope.<envelope>."""
    module = importlib.import_module("%s.%s" % (_ENVELOPES, envelope))
    classes = _classes(module)
    if not classes:
        raise HandlerError("envelope %r: %s defines no class" % (envelope, module.__name__))
    return classes[0](entry).handle  # type: ignore[no-any-return]


def _import(handler: str, model_dir: str) -> ModuleType:
    name = handler.partition(":")[0]
    if name.endswith(".py"):
        name = name[: -len(".py")]
    name = name.rpartition("/")[2]
    try:
        return _import_from_model(name, model_dir)
    except ImportError as err:
        first = err
    # TorchServe looks among its own handlers next, and when that fails too it shows only the second, misleading error.
    built_in = "%s.%s" % (_BUILT_IN, handler)
    try:
        module = importlib.import_module(built_in)
    except ImportError as second:
        own_is_missing = isinstance(first, ModuleNotFoundError) and first.name == name
        # For "x.py" the import system misses "ts.torch_handler.x" already.
        built_in_is_missing = isinstance(second, ModuleNotFoundError) and built_in.startswith(second.name or "?")
        if own_is_missing and built_in_is_missing:
            raise HandlerError(
                "handler %r: there is no module %r in the model's folder, and no built-in handler of that name; %s"
                % (handler, name, python_files(model_dir))
            ) from None
        raise (second if own_is_missing else first) from None
    if not (isinstance(first, ModuleNotFoundError) and first.name == name):
        log.warning("handler %r: the model's own module cannot be imported (%s), the built-in handler is used", handler, first)
    return module


def _import_from_model(name: str, model_dir: str) -> ModuleType:
    path = os.path.join(model_dir, name + ".py")
    loaded = sys.modules.get(name)
    if loaded is None or not os.path.isfile(path) or is_below(getattr(loaded, "__file__", None), model_dir):
        return importlib.import_module(name)
    # The handler has the name of a module that is loaded already. It is run from its file, and the other one keeps its name.
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        return importlib.import_module(name)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _choose_class(module: ModuleType, handler: str) -> Any:
    classes = _classes(module)
    if len(classes) == 1:
        return classes[0]
    able = [c for c in classes if hasattr(c, "handle")]
    if len(able) == 1:
        return able[0]
    where = "%s (%s)" % (module.__name__, getattr(module, "__file__", "built in"))
    if able:
        names = " and ".join(c.__name__ for c in able)
        raise HandlerError(
            "handler %r: Expected only one class in custom service code or a function entry point, but %s has several classes "
            "with a handle method: %s. Name the one to use, as in %r"
            % (handler, where, names, "%s:%s" % (handler.partition(":")[0], able[-1].__name__))
        )
    raise HandlerError(
        "handler %r: Expected only one class in custom service code or a function entry point, but %s has neither a function "
        "'handle' nor a class with a handle method (classes: %s)"
        % (handler, where, ", ".join(c.__name__ for c in classes) or "none")
    )


def _from_class(chosen: Any, said: str = "") -> Tuple[EntryPoint, Initialize]:
    """The entry point of a class. `said` is how it came to be this one, for errors."""
    instance = chosen()
    said = said and said + ": "
    if not hasattr(instance, "handle"):
        raise HandlerError("%sExpect handle method in class %s" % (said, chosen))
    if not hasattr(instance, "initialize"):
        raise HandlerError(
            "%sclass %s has no initialize method; it is called once, with the context, before any request" % (said, chosen)
        )
    return instance.handle, instance.initialize


def _classes(module: ModuleType) -> List[Any]:
    """The classes that a module defines itself, by name."""
    found = []
    for name in sorted(vars(module)):
        value = vars(module)[name]
        if isinstance(value, type) and value.__module__ == module.__name__ and value not in found:
            found.append(value)
    return found


def is_below(path: Optional[str], folder: str) -> bool:
    """Whether `path` lies in `folder` or below, links followed."""
    if not path:
        return False
    return os.path.realpath(path).startswith(os.path.join(os.path.realpath(folder), ""))
