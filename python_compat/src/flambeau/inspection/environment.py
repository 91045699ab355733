"""What can be said of the interpreter and its packages without importing any of them."""

from __future__ import annotations

import os
import platform
import re
import sys
from importlib.machinery import EXTENSION_SUFFIXES

from flambeau.pip_names import canonical

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Dict, List

_METADATA = re.compile(r"(.+?)-([^-]+)(?:-py[^-]*)?\.(?:dist|egg)-info$")
_FOLDERS_LOOKED_AT = 2000  # of one folder of packages


def describe() -> Dict[str, Any]:
    """The interpreter: version, ABI, machine, C library, and the variables of PEP 508's markers."""
    version = sys.version_info
    implementation = sys.implementation.name
    libc, libc_version = platform.libc_ver()
    return {
        "executable": sys.executable,
        "version": "%d.%d.%d" % version[:3],
        "implementation": implementation,
        "free_threaded": bool(getattr(sys, "abiflags", "").find("t") >= 0),
        "debug": hasattr(sys, "gettotalrefcount"),
        "extension_suffixes": EXTENSION_SUFFIXES,
        "machine": platform.machine(),
        "platform": sys.platform,
        "libc": libc or "musl",
        "libc_version": libc_version,
        "markers": {
            "implementation_name": implementation,
            "implementation_version": "%d.%d.%d" % sys.implementation.version[:3],
            "os_name": os.name,
            "platform_machine": platform.machine(),
            "platform_python_implementation": platform.python_implementation(),
            "platform_release": platform.release(),
            "platform_system": platform.system(),
            "platform_version": platform.version(),
            "python_full_version": platform.python_version(),
            "python_version": "%d.%d" % version[:2],
            "sys_platform": sys.platform,
            "extra": "",
        },
    }


def distributions(path: List[str]) -> Dict[str, str]:
    """The installed packages and their versions, by the names of their metadata's folders. The first on the path counts."""
    found: Dict[str, str] = {}
    for folder in path:
        for name in _entries(folder):
            match = _METADATA.match(name)
            if match:
                found.setdefault(canonical(match.group(1)), match.group(2))
    return found


def library_folders(path: List[str]) -> List[str]:
    """Folders in which packages bring shared libraries: what is loaded from there once is found by its name."""
    found = []
    for folder in path:
        for name in _entries(folder):
            candidates = [name] if name.endswith(".libs") else [name + "/lib", name + "/lib64", name + "/.libs", name + "/capi"]
            if name == "nvidia":
                candidates += ["nvidia/%s/lib" % inner for inner in _entries(os.path.join(folder, "nvidia"))]
            found += [os.path.join(folder, one) for one in candidates if os.path.isdir(os.path.join(folder, one))]
    own = os.path.join(sys.base_prefix, "lib")
    return [*found, own] if os.path.isdir(own) else found


def torch_format(path: List[str]) -> int:
    """The newest version of TorchScript's files that the installed torch reads, by its own header; 0 when it does not say."""
    for folder in path:
        header = os.path.join(folder, "torch", "include", "caffe2", "serialize", "versions.h")
        try:
            with open(header, encoding="utf-8", errors="replace") as file:
                match = re.search(r"kMaxSupportedFileFormatVersion\s*=\s*(0[xX][0-9a-fA-F]+|\d+)", file.read(1 << 20))
        except OSError:
            continue
        return int(match.group(1), 0) if match else 0
    return 0


def _entries(folder: str) -> List[str]:
    try:
        return sorted(os.listdir(folder))[:_FOLDERS_LOOKED_AT]
    except OSError:
        return []
