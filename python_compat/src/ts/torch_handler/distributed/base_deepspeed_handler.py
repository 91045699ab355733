"""The class that handlers of DeepSpeed models derive from."""

from __future__ import annotations

import os

from ts.context import Context
from ts.torch_handler.base_handler import BaseHandler


class BaseDeepSpeedHandler(BaseHandler):
    """Takes the GPU of this process's rank; the rest is the handler's."""

    def initialize(self, ctx: Context) -> None:
        """Set the device to LOCAL_RANK, 0 without one."""
        self.device = int(os.environ.get("LOCAL_RANK", "0"))
