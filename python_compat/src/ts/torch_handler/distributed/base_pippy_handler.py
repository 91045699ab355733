"""The class that handlers of PiPPy models derive from."""

from __future__ import annotations

import os

from ts.context import Context
from ts.handler_utils.distributed.pt_pippy import initialize_rpc_workers
from ts.torch_handler.base_handler import BaseHandler


class BasePippyHandler(BaseHandler):
    """Joins the RPC group with the GPU of this process's rank; the rest is the handler's."""

    def initialize(self, ctx: Context) -> None:
        """Read LOCAL_RANK and WORLD_SIZE, which torchrun sets. Raises KeyError without them.

        The device is the CPU when there is no GPU.
        """
        import torch

        self.local_rank = int(os.environ["LOCAL_RANK"])
        self.world_size = int(os.environ["WORLD_SIZE"])
        devices = torch.cuda.device_count()
        self.device = self.local_rank % devices if devices else torch.device("cpu")
        initialize_rpc_workers(self.local_rank, self.world_size, ctx)
