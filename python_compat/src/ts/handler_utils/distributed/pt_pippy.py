"""Pipelines of PiPPy, as the model's configuration describes them. What needs torchpippy imports it when it is called."""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import logging
import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from ts.context import Context

pippy_installed = importlib.util.find_spec("pippy") is not None

logger = logging.getLogger(__name__)


def initialize_rpc_workers(local_rank: int, world_size: int, ctx: Context) -> None:
    """Join the RPC group as worker<local_rank>; section pippy of the configuration has rpc_timeout and num_worker_threads.

    Without a GPU, which TorchServe fails on, the workers exchange their tensors on the CPU.
    """
    import torch
    import torch.distributed.rpc as rpc

    section = (ctx.model_yaml_config or {})["pippy"]
    options = rpc.TensorPipeRpcBackendOptions(
        num_worker_threads=section["num_worker_threads"], rpc_timeout=section["rpc_timeout"]
    )
    devices = torch.cuda.device_count()
    mine = local_rank % devices if devices else "cpu"
    for other in range(world_size if devices else 0):
        options.set_device_map("worker%d" % other, {mine: other % devices})
    logger.info("rank = %d pid/device = %d/%s", local_rank, os.getpid(), mine)
    rpc.init_rpc("worker%d" % local_rank, rank=local_rank, world_size=world_size, rpc_backend_options=options)


def get_pipeline_driver(model: Any, world_size: int, ctx: Context) -> Any:
    """Split `model` into `world_size` stages and give what drives them: for model_type HF the model itself, with a new forward.

    Section pippy of the configuration has input_names, model_type and, if wanted, chunks (1); section handler has model_path and,
    if wanted, index_filename. Raises AssertionError for what is missing, ImportError without torchpippy.
    """
    section, handler = _sections(ctx)
    index_path = None
    if handler.get("index_filename") is not None:
        index_path = os.path.join(handler["model_path"], handler["index_filename"])
        assert os.path.exists(index_path), "Index file '%s' not found" % index_path
    pippy = _pippy("pippy")
    hf = _pippy("pippy.hf")
    model.eval()
    hugging_face = section["model_type"] == "HF"
    parameters = inspect.signature(model.forward).parameters.values()
    concrete = {one.name: one.default for one in parameters if one.name not in section["input_names"]}
    if hugging_face and "bloom" in str(type(model)):
        concrete.setdefault("deprecated_arguments", {})
    logger.info("Initializing the model pipeline")
    driver, _ = pippy.all_compile(
        model,
        num_ranks=world_size,
        num_chunks=section.get("chunks", 1),
        schedule="FillDrain",
        split_policy=pippy.split_into_equal_size(world_size),
        tracer=hf.PiPPyHFTracer() if hugging_face else None,
        concrete_args=concrete,
        index_filename=index_path,
        checkpoint_prefix=None,
    )
    if not hugging_face:
        return driver
    hf.inject_pipeline_forward(model, driver)
    return model


get_pipline_driver = get_pipeline_driver  # as older handlers spell it


def _pippy(module: str) -> Any:
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as err:
        text = "a pipeline of PiPPy needs torchpippy, which does not work here (%s): pip install torchpippy, or use "
        text += "torch.distributed.pipelining, which is part of torch and took its place"
        raise ImportError(text % err, name=err.name) from err


def _sections(ctx: Context) -> Any:
    configuration = ctx.model_yaml_config or {}
    for name, keys in (("pippy", ("input_names", "model_type")), ("handler", ("model_path",))):
        assert name in configuration, "Missing '%s' key in YAML config" % name
        for key in keys:
            assert key in configuration[name], "Missing '%s' key in YAML config" % key
    return configuration["pippy"], configuration["handler"]
