"""The error that the workflow archiver raises for what it refuses."""

from __future__ import annotations

from flambeau.packing.errors import PackingError


class WorkflowArchiverError(PackingError):
    """Nothing was archived. The text says what is wrong, where, and what to do."""

    def __init__(self, message: str) -> None:
        super().__init__(message)
