"""Settings of the tests of the `ts` modules."""

from __future__ import annotations

import pytest


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "torch: needs torch and torchvision; skipped only where they are not installed")
