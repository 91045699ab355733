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
NAMES = """
model_archiver
model_archiver.ModelArchiver
model_archiver.ModelArchiverConfig
model_archiver.__version__
model_archiver.arg_parser.ArgParser
model_archiver.manifest_components.manifest.RuntimeType
model_archiver.model_archiver_config.ModelArchiverConfig
model_archiver.model_archiver_error.ModelArchiverError
model_archiver.model_packaging.generate_model_archive
model_archiver.model_packaging.package_model
model_archiver.model_packaging_utils.ModelExportUtils
model_archiver.model_packaging_utils.archiving_options
torch_model_archiver.ModelArchiver
torch_model_archiver.model_packaging_utils
ts
ts.arg_parser.ArgParser
ts.async_service.AsyncService
ts.context.Context
ts.context.RequestProcessor
ts.handler_utils.distributed.deepspeed.create_checkpoints_json
ts.handler_utils.distributed.deepspeed.get_ds_engine
ts.handler_utils.distributed.pt_pippy.get_pipeline_driver
ts.handler_utils.distributed.pt_pippy.get_pipline_driver
ts.handler_utils.distributed.pt_pippy.initialize_rpc_workers
ts.handler_utils.hf_batch_streamer.TextIteratorStreamerBatch
ts.handler_utils.micro_batching.MicroBatching
ts.handler_utils.preprocess.dali.get_dali_pipeline
ts.handler_utils.timer.timed
ts.handler_utils.utils.import_class
ts.handler_utils.utils.send_intermediate_predict_response
ts.launcher.register_model
ts.launcher.register_model_with_params
ts.launcher.start
ts.launcher.stop
ts.llm_launcher.create_mar_file
ts.llm_launcher.create_tensorrt_llm_engine
ts.llm_launcher.get_model_config
ts.llm_launcher.main
ts.metrics.caching_metric.CachingMetric
ts.metrics.dimension.Dimension
ts.metrics.metric.Metric
ts.metrics.metric_abstract.MetricAbstract
ts.metrics.metric_cache_abstract.MetricCacheAbstract
ts.metrics.metric_cache_errors
ts.metrics.metric_cache_errors.MetricsCachePyYamlError
ts.metrics.metric_cache_yaml_impl.MetricsCacheYamlImpl
ts.metrics.metric_encoder.MetricEncoder
ts.metrics.metric_type_enum.MetricTypes
ts.metrics.metrics_store.MetricsStore
ts.metrics.process_memory_metric.check_process_mem_usage
ts.metrics.system_metrics
ts.metrics.unit.Units
ts.model_loader.ModelLoaderFactory
ts.model_loader.TsModelLoader
ts.model_server.start
ts.model_service.model_service.ModelService
ts.model_service.model_service.SingleNodeService
ts.model_service_worker.TorchModelServiceWorker
ts.protocol.otf_message_handler
ts.protocol.otf_message_handler.send_intermediate_predict_response
ts.service.Service
ts.service.emit_metrics
ts.torch_handler.base_handler
ts.torch_handler.base_handler.BaseHandler
ts.torch_handler.base_handler.PROFILER_AVAILABLE
ts.torch_handler.dali_handler.DALIHandler
ts.torch_handler.dali_image_classifier.DALIImageClassifier
ts.torch_handler.densenet_handler.DenseNetHandler
ts.torch_handler.distributed.base_deepspeed_handler.BaseDeepSpeedHandler
ts.torch_handler.distributed.base_pippy_handler.BasePippyHandler
ts.torch_handler.image_classifier.ImageClassifier
ts.torch_handler.image_segmenter.ImageSegmenter
ts.torch_handler.object_detector.ObjectDetector
ts.torch_handler.request_envelope.body.BodyEnvelope
ts.torch_handler.request_envelope.json.JSONEnvelope
ts.torch_handler.request_envelope.kserve
ts.torch_handler.request_envelope.kservev2
ts.torch_handler.text_classifier.TextClassifier
ts.torch_handler.text_handler.BaseHandler
ts.torch_handler.text_handler.TextHandler
ts.torch_handler.trt_llm_handler.TRTLLMHandler
ts.torch_handler.unit_tests.test_utils.mock_context.MockContext
ts.torch_handler.unit_tests.test_utils.model_dir.copy_files
ts.torch_handler.unit_tests.test_utils.model_dir.download_model
ts.torch_handler.vision_handler.VisionHandler
ts.torch_handler.vllm_handler.VLLMHandler
ts.utils.hf_utils.download_model
ts.utils.setup_model_venv.create_venv
ts.utils.timeit_decorator.timeit
ts.utils.util.CLEANUP_REGEX
ts.utils.util.PredictionException
ts.utils.util.check_valid_pt2_backend
ts.utils.util.deprecated
ts.utils.util.get_yaml_config
ts.utils.util.list_classes_from_module
ts.utils.util.load_label_mapping
ts.utils.util.map_class_to_label
ts.version.__version__
workflow_archiver
workflow_archiver.__version__
workflow_archiver.workflow_archiver_error.WorkflowArchiverError
workflow_archiver.workflow_packaging.generate_workflow_archive
workflow_archiver.workflow_packaging.package_workflow
workflow_archiver.workflow_packaging_utils.WorkflowExportUtils
""".split()

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
    stub = "import sys, types; sys.modules['pytest'] = types.SimpleNamespace(mark=types.SimpleNamespace(parametrize=lambda *a: lambda f: f))\n"
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
