"""What the tests of models of several ranks share."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Iterator

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from rankkit import Stage


@pytest.fixture
def stage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Stage]:
    """A place to run a leader in this process, with ranks in real processes."""
    one = Stage(tmp_path, monkeypatch)
    yield one
    one.clear()
