"""The helpers for models of several processes: importable by themselves, clear about what they need when they are used."""

from __future__ import annotations

import importlib.util
import os
import socket
import subprocess
import sys
import textwrap
from pathlib import Path
from types import SimpleNamespace

import pytest

SRC = Path(__file__).parents[2] / "src"
NO_TORCH = importlib.util.find_spec("torch") is None


def context(**config: object) -> SimpleNamespace:
    return SimpleNamespace(model_yaml_config=config, model_name="m", system_properties={"model_dir": "/nowhere"})


@pytest.mark.skipif(importlib.util.find_spec("deepspeed") is not None, reason="deepspeed is installed")
def test_an_engine_without_deepspeed() -> None:
    from ts.handler_utils.distributed.deepspeed import get_ds_engine
    from ts.torch_handler.distributed.base_deepspeed_handler import BaseDeepSpeedHandler

    assert BaseDeepSpeedHandler is not None
    with pytest.raises(ImportError, match=r"pip install deepspeed") as caught:
        get_ds_engine(None, context(handler={"model_path": "x"}, deepspeed={}))  # type: ignore[arg-type]
    assert caught.value.name == "deepspeed"


@pytest.mark.skipif(importlib.util.find_spec("pippy") is not None, reason="torchpippy is installed")
def test_a_pipeline_without_pippy() -> None:
    from ts.handler_utils.distributed import pt_pippy

    assert pt_pippy.pippy_installed is False
    config = context(pippy={"input_names": [], "model_type": "HF"}, handler={"model_path": "x"})
    with pytest.raises(ImportError, match=r"pip install torchpippy") as caught:
        pt_pippy.get_pipeline_driver(None, 2, config)  # type: ignore[arg-type]
    assert caught.value.name == "pippy"


@pytest.mark.parametrize(
    ("config", "missing"),
    [
        ({"handler": {}}, "pippy"),
        ({"pippy": {"model_type": "HF"}, "handler": {"model_path": "x"}}, "input_names"),
        ({"pippy": {"input_names": []}, "handler": {"model_path": "x"}}, "model_type"),
        ({"pippy": {"input_names": [], "model_type": "HF"}, "handler": {}}, "model_path"),
    ],
)
def test_a_pipeline_without_its_settings(config: dict, missing: str) -> None:  # type: ignore[type-arg]
    from ts.handler_utils.distributed.pt_pippy import get_pipeline_driver

    with pytest.raises(AssertionError, match="Missing '%s' key in YAML config" % missing):
        get_pipeline_driver(None, 2, context(**config))  # type: ignore[arg-type]


def test_device_of_a_deepspeed_rank(monkeypatch: pytest.MonkeyPatch) -> None:
    from ts.torch_handler.distributed.base_deepspeed_handler import BaseDeepSpeedHandler

    handler = BaseDeepSpeedHandler()
    for variable, device in ((None, 0), ("3", 3)):
        if variable:
            monkeypatch.setenv("LOCAL_RANK", variable)
        else:
            monkeypatch.delenv("LOCAL_RANK", raising=False)
        handler.initialize(context())  # type: ignore[arg-type]
        assert handler.device == device


@pytest.mark.torch
@pytest.mark.skipif(NO_TORCH, reason="torch is not installed")
def test_two_pippy_ranks_call_each_other_on_the_cpu(tmp_path: Path) -> None:
    script = """
        import os
        from types import SimpleNamespace
        import torch.distributed.rpc as rpc
        from ts.torch_handler.distributed.base_pippy_handler import BasePippyHandler

        handler = BasePippyHandler()
        handler.initialize(SimpleNamespace(model_yaml_config={"pippy": {"rpc_timeout": 60, "num_worker_threads": 8}}))
        answer = rpc.rpc_sync("worker%d" % (1 - handler.local_rank), os.getenv, ("LOCAL_RANK",))
        rpc.shutdown()
        print(handler.local_rank, handler.device, answer)
    """
    env = dict(os.environ, PYTHONPATH=str(SRC), CUDA_VISIBLE_DEVICES="", WORLD_SIZE="2", MASTER_ADDR="127.0.0.1")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        env["MASTER_PORT"] = str(free.getsockname()[1])
    ranks = [
        subprocess.Popen(
            [sys.executable, "-c", textwrap.dedent(script)],
            env=dict(env, LOCAL_RANK=rank, RANK=rank),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for rank in "01"
    ]
    out = [rank.communicate(timeout=120)[0].splitlines()[-1] for rank in ranks]
    assert out == ["0 cpu 1", "1 cpu 0"]
