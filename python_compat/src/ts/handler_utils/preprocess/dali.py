"""NVIDIA DALI's pipeline, as the model's configuration describes it. What needs DALI imports it when it is called."""

from __future__ import annotations

import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from ts.context import Context


def get_dali_pipeline(ctx: Context) -> Any:
    """The pipeline of section dali: batch_size, num_threads, device_id, seed, and pipeline_file, a file in the model's folder.

    Raises ValueError without that section, and RuntimeError when the file is not there or not named: the pipeline for ImageNet
    that TorchServe takes then is not part of Flambeau. Raises ImportError without DALI.
    """
    configuration = ctx.model_yaml_config or {}
    if "dali" not in configuration:
        raise ValueError("%s has no dali config in model config yaml file" % ctx.model_name)
    section = configuration["dali"]
    batch_size, threads, device, seed = (section[key] for key in ("batch_size", "num_threads", "device_id", "seed"))
    if "pipeline_file" not in section:
        raise RuntimeError(
            "Missing dali pipeline file: Flambeau has no built-in one. Serialize a pipeline, put its file into the archive, and "
            "name it as dali.pipeline_file in the model's configuration"
        )
    path = os.path.join(ctx.system_properties["model_dir"], section["pipeline_file"])
    if not os.path.exists(path):
        raise RuntimeError("Missing dali pipeline file: there is no %s" % path)
    pipeline = _pipeline_class().deserialize(
        filename=path, batch_size=batch_size, num_threads=threads, prefetch_queue_depth=1, device_id=device, seed=seed
    )
    # A serialized pipeline keeps what it was made with: the configuration goes before it.
    pipeline._max_batch_size, pipeline._num_threads, pipeline._device_id = batch_size, threads, device
    return pipeline


def _pipeline_class() -> Any:
    try:
        from nvidia.dali.pipeline import Pipeline
    except ModuleNotFoundError as err:
        text = "the model's images are read by DALI, which does not work here (%s): pip install nvidia-dali-cuda120" % err
        raise ImportError(text, name=err.name) from err
    return Pipeline
