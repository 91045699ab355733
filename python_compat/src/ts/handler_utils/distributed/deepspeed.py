"""DeepSpeed's inference engine, as the model's configuration describes it. What needs deepspeed imports it when it is called."""

from __future__ import annotations

import importlib
import json
import logging
import os
from pathlib import Path

from ts.context import Context

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


def create_checkpoints_json(model_path: str, checkpoints_json: str) -> None:
    """Write DeepSpeed's description of the .bin files (and their like) below `model_path`."""
    print("Creating deepspeed checkpoint file %s" % checkpoints_json)
    files = [str(path) for path in Path(model_path).rglob("*.[bp][it][n]") if path.is_file()]
    with open(checkpoints_json, "w", encoding="utf-8") as file:
        json.dump({"type": "ds_model", "checkpoints": files, "version": 1.0}, file)


def get_ds_engine(model: Any, ctx: Context) -> Any:
    """The engine for `model`. Section deepspeed of the configuration may name config and checkpoint, files in the model's folder.

    Raises ValueError without that section, or when the config file is not there, and ImportError without deepspeed.
    """
    configuration = ctx.model_yaml_config or {}
    model_path = configuration["handler"]["model_path"]
    if "deepspeed" not in configuration:
        raise ValueError("%s has no deepspeed config in model config yaml file" % ctx.model_name)
    section, model_dir = configuration["deepspeed"], ctx.system_properties["model_dir"]
    config = checkpoint = None
    if "config" in section:
        config = os.path.join(model_dir, section["config"])
        if not os.path.exists(config):
            raise ValueError("%s has no deepspeed config file %s" % (ctx.model_name, config))
    if "checkpoint" in section:
        checkpoint = os.path.join(model_dir, section["checkpoint"])
        create_checkpoints_json(model_path, checkpoint)
    logging.debug("Creating DeepSpeed engine")
    return _deepspeed().init_inference(model, config=config, base_dir=model_path, checkpoint=checkpoint)


def _deepspeed() -> Any:
    try:
        return importlib.import_module("deepspeed")
    except ModuleNotFoundError as err:
        text = "the model's engine is DeepSpeed's, which does not work here (%s): pip install deepspeed" % err
        raise ImportError(text, name=err.name) from err
