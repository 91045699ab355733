"""One rank of several: does what the body says.

For instance "sum:2", "stream:2", "loop:", "exit:1" (rank 1 ends) or "alone:" (all but rank 0 end).
"""

import os
import subprocess

import torch
import torch.distributed as dist
from ts.handler_utils.utils import send_intermediate_predict_response


class Ranks:
    def initialize(self, context):
        self.rank = int(os.environ["LOCAL_RANK"])
        dist.init_process_group("gloo")
        print("rank", self.rank, "is there")
        if os.path.exists("fail-at-load") and self.rank == 1:
            raise ValueError("rank 1 does not want to")

    def handle(self, data, context):
        return [
            getattr(self, word)(value, context) for word, _, value in (bytes(row["body"]).decode().partition(":") for row in data)
        ]

    def sum(self, value, context):
        total = torch.tensor([float(value) * (self.rank + 1)])
        dist.all_reduce(total)
        gathered = [None] * dist.get_world_size()
        dist.all_gather_object(gathered, os.getpid())
        print("summed", total.item())
        return {"sum": total.item(), "rank": self.rank, "pids": gathered, "threads": os.environ["OMP_NUM_THREADS"]}

    def alone(self, value, context):
        if self.rank > 0:
            os._exit(4)
        return {"rank": self.rank, "world": dist.get_world_size()}

    def stream(self, value, context):
        for i in range(int(value)):
            total = torch.tensor([float(i)])
            dist.all_reduce(total)
            send_intermediate_predict_response(
                ["%g;" % total.item()], context.request_ids, "Intermediate Prediction success", 200, context
            )
        return "end"

    def loop(self, value, context):
        subprocess.Popen(["sleep", "1000"])
        while True:
            pass

    def exit(self, value, context):
        if self.rank == int(value):
            os._exit(3)
        dist.barrier()
        return "all are there"
