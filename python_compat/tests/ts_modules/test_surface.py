"""Names, parameters and defaults of TorchServe 0.12.0's modules (surface.json was recorded from it) against ours."""

from __future__ import annotations

import enum
import importlib
import importlib.util
import inspect
import json
from pathlib import Path
from typing import Any, Dict, List, Tuple

import pytest

SURFACE: Dict[str, Dict[str, Any]] = json.loads(Path(__file__).with_name("surface.json").read_text(encoding="utf-8"))
NEEDS = {
    "ts.torch_handler.vision_handler": ("torch", "PIL"),
    "ts.torch_handler.image_classifier": ("torch", "torchvision", "PIL"),
    "ts.torch_handler.image_segmenter": ("torch", "torchvision", "PIL"),
    "ts.torch_handler.object_detector": ("torch", "torchvision", "PIL"),
    "ts.torch_handler.text_handler": ("torch",),
    "ts.torch_handler.text_classifier": ("torch",),
    "ts.torch_handler.densenet_handler": ("torch",),
    "ts.torch_handler.request_envelope.kservev2": ("numpy",),
    "ts.metrics.system_metrics": ("psutil",),
    "ts.metrics.process_memory_metric": ("psutil",),
}


def cases() -> List[Any]:
    out = []
    for module, names in SURFACE.items():
        missing = [name for name in NEEDS.get(module, ()) if importlib.util.find_spec(name) is None]
        marks = [pytest.mark.torch] if "torch" in NEEDS.get(module, ()) else []
        if missing:
            marks.append(pytest.mark.skip(reason="not installed: %s" % ", ".join(missing)))
        out.append(pytest.param(module, names, id=module, marks=marks))
    return out


def parameters(function: Any) -> str:
    out = []
    for parameter in inspect.signature(function).parameters.values():
        stars = {parameter.VAR_POSITIONAL: "*", parameter.VAR_KEYWORD: "**"}.get(parameter.kind, "")
        text = stars + parameter.name
        if parameter.default is not parameter.empty:
            default = parameter.default
            if isinstance(default, enum.Enum):
                text += "=" + str(default)
            else:
                text += "=" + (default.__name__ if isinstance(default, type) else repr(default))
        out.append(text)
    return "(%s)" % ", ".join(out)


def described(owner: type, name: str) -> Tuple[Any, ...]:
    """What surface.json may say of a class's attribute."""
    static = inspect.getattr_static(owner, name)
    if isinstance(static, property):
        return ("property",)
    if isinstance(static, (staticmethod, classmethod)):
        return (parameters(static.__func__),)
    if inspect.isfunction(static):
        return ("wrapped",) if static.__name__ == "wrap_func" else (parameters(static),)
    value = getattr(owner, name)
    if isinstance(value, enum.Enum):
        return (value.value,)
    return (value, "value") if isinstance(value, (int, float, str)) else ("value",)


@pytest.mark.parametrize(("module", "names"), cases())
def test_module(module: str, names: Dict[str, Any]) -> None:
    ours = importlib.import_module(module)
    for name, wanted in names.items():
        if wanted is True and name.endswith("_AVAILABLE") and importlib.util.find_spec("torch") is None:
            continue
        value = getattr(ours, name)
        if isinstance(wanted, str):
            assert parameters(value) == wanted, name
        elif isinstance(wanted, dict):
            assert isinstance(value, type), name
            for attribute, said in wanted.items():
                assert said in described(value, attribute), "%s.%s" % (name, attribute)


def test_version() -> None:
    import ts
    import ts.version

    assert ts.__version__ == ts.version.__version__ == "0.12.0"
    assert (Path(ts.__file__).parent / "version.txt").read_text().strip() == "0.12.0"
