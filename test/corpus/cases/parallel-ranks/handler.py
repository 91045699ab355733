import os

import torch
import torch.distributed as dist
from ts.handler_utils.utils import send_intermediate_predict_response

NAMES = (
    "RANK",
    "LOCAL_RANK",
    "WORLD_SIZE",
    "LOCAL_WORLD_SIZE",
    "GROUP_RANK",
    "OMP_NUM_THREADS",
    "LOGLEVEL",
    "CUDA_VISIBLE_DEVICES",
)


class Ranks:
    def initialize(self, context):
        dist.init_process_group("gloo")
        self.rank = dist.get_rank()
        self.gpu = context.system_properties["gpu_id"]

    def handle(self, data, context):
        words = [bytes(row["body"]).decode() for row in data]
        if words[0] == "environment":
            return [{"gpu": self.gpu, "here": os.path.isfile("handler.py"), **{name: os.environ.get(name) for name in NAMES}}]
        if words[0] == "fail":
            raise ValueError("in every rank")
        if words[0] == "nothing":
            return ["something"] if self.rank == 0 else None  # only the answer of rank 0 counts
        total = torch.tensor([float(self.rank + 1)])
        dist.all_reduce(total)
        if words[0] == "stream":
            send_intermediate_predict_response(["%g;" % total.item()], context.request_ids, "more", 200, context)
        context.set_response_header(0, "x-rank", str(self.rank))
        return ["%g" % total.item()]
