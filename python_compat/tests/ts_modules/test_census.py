"""Every name of `ts` and of the archivers that code in the wild imports is there, or says what to use instead."""

from __future__ import annotations

import importlib
import importlib.util
import subprocess
import sys
import types
from pathlib import Path
from typing import Any, Dict, List, Tuple

import pytest

SRC = Path(__file__).parents[2] / "src"

# A survey of public repositories, TorchServe's own examples, tests and documentation among them, found these names. Left out:
# ts.torch_handler.captum_utils and torch_model_archiver.cmd_args_parser, which TorchServe 0.12 does not have either.
NAMES = Path(__file__).with_name("census.txt").read_text(encoding="utf-8").split()

# What a name may need that is not of this distribution: its import names one of these when it is not installed.
FOREIGN = {
    "ts.handler_utils.hf_batch_streamer": ("transformers",),
    "ts.metrics.process_memory_metric": ("psutil",),
    "ts.metrics.system_metrics": ("psutil",),
    "ts.torch_handler.base_handler.PROFILER_AVAILABLE": ("torch",),
    "ts.torch_handler.dali_handler": ("numpy", "torch", "PIL"),
    "ts.torch_handler.dali_image_classifier": ("numpy", "torch", "PIL"),
    "ts.torch_handler.densenet_handler": ("torch",),
    "ts.torch_handler.image_classifier": ("torch", "torchvision", "PIL"),
    "ts.torch_handler.image_segmenter": ("torch", "torchvision", "PIL"),
    "ts.torch_handler.object_detector": ("torch", "torchvision", "PIL"),
    "ts.torch_handler.request_envelope.kservev2": ("numpy",),
    "ts.torch_handler.text_classifier": ("torch",),
    "ts.torch_handler.text_handler": ("torch",),
    "ts.torch_handler.trt_llm_handler": ("tensorrt_llm", "transformers"),
    "ts.torch_handler.unit_tests.test_utils.model_dir": ("requests",),
    "ts.torch_handler.vision_handler": ("torch", "PIL"),
    "ts.torch_handler.vllm_handler": ("vllm",),
    "ts.utils.hf_utils": ("huggingface_hub",),
}


def find(name: str) -> Any:
    """Import as much of a dotted name as is a module, and look the rest up."""
    parts = name.split(".")
    for end in range(len(parts), 0, -1):
        module = ".".join(parts[:end])
        try:
            found = importlib.import_module(module)
        except ModuleNotFoundError as err:
            if err.name is not None and module.startswith(err.name):
                continue  # an attribute, not a module
            raise
        for part in parts[end:]:
            found = getattr(found, part)
        return found
    raise AssertionError("there is nothing of %s" % name)


def foreign(name: str) -> Tuple[str, ...]:
    """The packages that a name may need."""
    return next((needs for prefix, needs in FOREIGN.items() if name.startswith(prefix)), ())


@pytest.mark.parametrize("name", NAMES)
def test_name(name: str) -> None:
    missing = [package for package in foreign(name) if importlib.util.find_spec(package) is None]
    try:
        assert find(name) is not None
    except ImportError as err:
        assert missing, "nothing that it needs is missing: %s" % err
        assert any(package in str(err) for package in missing), "%s does not name one of %s" % (err, missing)


def test_each_names_what_it_lacks_when_nothing_is_installed() -> None:
    """In an interpreter without any package each import works, or fails by the name of the missing one."""
    script = "import sys; sys.path[:0] = %r; import test_census; test_census.check_all()" % [str(SRC), str(Path(__file__).parent)]
    # pytest is not there either: what this file wants of it at its import does nothing.
    stub = "import sys, types; mark = types.SimpleNamespace(parametrize=lambda *_: lambda test: test)\n"
    stub += "sys.modules['pytest'] = types.SimpleNamespace(mark=mark, MonkeyPatch=object)\n"
    ran = subprocess.run([sys.executable, "-I", "-S", "-c", stub + script], capture_output=True, text=True, check=False)
    assert (ran.returncode, ran.stderr) == (0, "")
    assert ran.stdout.split() == ["ok"] * len(NAMES)


def check_all() -> None:
    """Run by the test above, in another process."""
    for name in NAMES:
        test_name(name)
        print("ok")


def refusals() -> Dict[str, Any]:
    """What exists here only to say what to use instead."""
    from ts import async_service, llm_launcher, model_service_worker

    return {
        "flambeau run": lambda: model_service_worker.TorchModelServiceWorker("unix", "/tmp/.ts.sock.9000"),
        "asyncCommunication": lambda: async_service.AsyncService(None).run(),
        "torch-model-archiver": lambda: llm_launcher.main(None),
        "vllm_handler": lambda: llm_launcher.create_mar_file(None),
    }


@pytest.mark.parametrize("instead", ["flambeau run", "asyncCommunication", "torch-model-archiver", "vllm_handler"])
def test_what_makes_no_sense_here_says_what_to_use(instead: str) -> None:
    with pytest.raises(RuntimeError, match=instead):
        refusals()[instead]()


def test_launchers_as_programs_say_it_too() -> None:
    for module in ("ts.llm_launcher", "ts.model_service_worker"):
        ran = subprocess.run([sys.executable, "-m", module], cwd=str(SRC), capture_output=True, text=True, check=False)
        assert ran.returncode == 1
        assert "Flambeau" in ran.stderr


def test_the_parsers_read_torchserves_command_lines() -> None:
    from ts.arg_parser import ArgParser

    args = ArgParser.extract_args(["--start", "--model-store", "s", "--models", "a=a.mar", "b.mar", "--ncs", "--dt"])
    assert (args.start, args.model_store, args.models) == (True, "s", ["a=a.mar", "b.mar"])
    assert (args.no_config_snapshots, args.token_auth, args.model_mode, args.stop) == (True, True, False, False)
    args = ArgParser.model_service_worker_args().parse_args(["--sock-type", "unix", "--sock-name", "x", "--async"])
    assert (args.sock_type, args.sock_name, args.async_comm, args.port) == ("unix", "x", True, None)


def test_missing_packages_are_named_when_they_are_needed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    from ts.context import Context
    from ts.handler_utils.distributed.pt_pippy import get_pipeline_driver
    from ts.handler_utils.preprocess.dali import get_dali_pipeline

    (tmp_path / "p.dali").write_bytes(b"")
    config: Dict[str, Any] = {
        "pippy": {"input_names": [], "model_type": "HF"},
        "handler": {"model_path": "."},
        "dali": {"batch_size": 1, "num_threads": 1, "device_id": 0, "seed": 1, "pipeline_file": "p.dali"},
    }
    context = Context("m", str(tmp_path), {}, 1, None, "0.12.0", model_yaml_config=config)
    for name in ("pippy", "nvidia.dali.pipeline"):
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(ImportError, match="pip install torchpippy"):
        get_pipeline_driver(None, 2, context)
    with pytest.raises(ImportError, match="pip install nvidia-dali"):
        get_dali_pipeline(context)
    del config["dali"]["pipeline_file"]
    with pytest.raises(RuntimeError, match="Missing dali pipeline file"):
        get_dali_pipeline(context)
    del config["dali"], config["pippy"]["model_type"]
    with pytest.raises(ValueError, match="m has no dali config"):
        get_dali_pipeline(context)
    with pytest.raises(AssertionError, match="Missing 'model_type' key"):
        get_pipeline_driver(None, 2, context)


def modules(monkeypatch: pytest.MonkeyPatch, names: Dict[str, Dict[str, Any]]) -> None:
    """Put modules with these attributes in the place of packages that are not installed."""
    for name, attributes in names.items():
        module = types.ModuleType(name)
        vars(module).update(attributes)
        monkeypatch.setitem(sys.modules, name, module)


def test_pippy_gets_what_the_configuration_says(monkeypatch: pytest.MonkeyPatch) -> None:
    from ts.context import Context
    from ts.handler_utils.distributed.pt_pippy import get_pipeline_driver

    compiled: List[Any] = []
    injected: List[Any] = []

    def all_compile(model: Any, **said: Any) -> Any:
        compiled.append(said)
        return "driver", "mode"

    class Model:
        evaluated = False

        def eval(self) -> None:
            self.evaluated = True

        def forward(self, ids: Any, mask: Any = None) -> None:
            pass

    named = {"PiPPyHFTracer": lambda: "tracer", "inject_pipeline_forward": lambda *said: injected.append(said)}
    modules(
        monkeypatch, {"pippy": {"all_compile": all_compile, "split_into_equal_size": lambda n: ("split", n)}, "pippy.hf": named}
    )
    config = {"pippy": {"input_names": ["ids"], "model_type": "HF", "chunks": 3}, "handler": {"model_path": "."}}
    context = Context("m", "/", {}, 1, None, "0.12.0", model_yaml_config=config)
    model = Model()
    assert get_pipeline_driver(model, 2, context) is model
    assert model.evaluated
    assert injected == [(model, "driver")]
    assert compiled == [
        {
            "num_ranks": 2,
            "num_chunks": 3,
            "schedule": "FillDrain",
            "split_policy": ("split", 2),
            "tracer": "tracer",
            "concrete_args": {"mask": None},
            "index_filename": None,
            "checkpoint_prefix": None,
        }
    ]
    config["pippy"]["model_type"] = "other"
    assert get_pipeline_driver(model, 2, context) == "driver"
