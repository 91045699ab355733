"""The version of this distribution: a file that a wheel carries, in a source checkout the one at its root."""

from __future__ import annotations

from pathlib import Path

_PACKAGED = Path(__file__).resolve().parent / "VERSION"


def read() -> str:
    """Gives the version, for example ``0.1.0``. Raises FileNotFoundError in an installation that lost the file."""
    path = _PACKAGED if packaged() else checkout(_PACKAGED.parent) / "VERSION"
    return path.read_text(encoding="utf-8").strip()


def packaged() -> bool:
    """Says whether this is the content of a wheel, and not a source checkout."""
    return _PACKAGED.is_file()


def checkout(package: Path) -> Path:
    """Gives the root of the source checkout that a package folder (python_compat/src/<package>) would lie in."""
    return package.parents[2]
