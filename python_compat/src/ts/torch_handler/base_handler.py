"""The class that most handlers derive from: loads a torch model and runs preprocess, inference, postprocess.

torch is imported when it is first needed: a handler that derives from BaseHandler and overrides what uses torch runs without it.
"""

from __future__ import annotations

import abc
import importlib
import importlib.util
import logging
import os
import sys
import time

from ts.handler_utils.timer import timed
from ts.utils.util import check_valid_pt2_backend, list_classes_from_module, load_label_mapping

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Dict, List, Optional, Tuple

logger = logging.getLogger(__name__)


# What TorchServe's module has as globals and what costs an import or asks for torch. Each is made when it is first asked for
# (module __getattr__, below) and may be replaced by assigning to it.


def _load_torch() -> Any:
    try:
        return importlib.import_module("torch")
    except ImportError as err:
        if err.name != "torch":
            raise  # torch is there, but something that it needs is not
        raise ImportError("this handler needs torch, which is not installed in %s" % sys.executable, name="torch") from None


def _torch_version() -> Tuple[int, ...]:
    numbers = _global("torch").__version__.split("+")[0].split(".")
    return tuple(int("".join(char for char in number if char.isdigit()) or 0) for number in numbers[:3])


def _importable(name: str) -> bool:
    try:
        importlib.import_module(name)
    except ImportError:
        return False
    return True


def _ipex_available() -> bool:
    if os.environ.get("TS_IPEX_ENABLE", "false") != "true":
        return False
    if _importable("intel_extension_for_pytorch"):
        return True
    logger.warning("TS_IPEX_ENABLE is true but intel-extension-for-pytorch is not installed: going on without it")
    return False


_GLOBALS = {
    "torch": _load_torch,
    "PROFILER_AVAILABLE": lambda: _torch_version() >= (1, 8, 1),
    "PT2_AVAILABLE": lambda: _torch_version() >= (2, 0),
    "PT230_AVAILABLE": lambda: _torch_version() > (2, 2, 2),
    "XLA_AVAILABLE": lambda: _importable("torch_xla.core.xla_model"),
    "ONNX_AVAILABLE": lambda: _importable("onnxruntime"),
    "IPEX_AVAILABLE": _ipex_available,
    "profile": lambda: importlib.import_module("torch.profiler").profile,
    "record_function": lambda: importlib.import_module("torch.profiler").record_function,
    "ProfilerActivity": lambda: importlib.import_module("torch.profiler").ProfilerActivity,
    "packaging": lambda: importlib.import_module("packaging.version") and importlib.import_module("packaging"),
    "ort": lambda: importlib.import_module("onnxruntime"),
    "psutil": lambda: importlib.import_module("psutil"),
    "ipex": lambda: importlib.import_module("intel_extension_for_pytorch"),
    "xm": lambda: importlib.import_module("torch_xla.core.xla_model"),
}  # type: Dict[str, Any]


def __getattr__(name: str) -> Any:
    if name not in _GLOBALS:
        raise AttributeError("module %r has no attribute %r" % (__name__, name))
    value = globals()[name] = _GLOBALS[name]()
    return value


def _global(name: str) -> Any:
    """A global of this module, made if nobody asked for it before."""
    return getattr(sys.modules[__name__], name)


_torch_is_prepared = False


def prepare_torch() -> None:
    """Set torch up as TorchServe does when this module is imported: TF32 on GPUs that have it. Once only."""
    global _torch_is_prepared  # torch has the setting once for the process
    if _torch_is_prepared:
        return
    _torch_is_prepared = True
    torch = _global("torch")
    if _global("PT2_AVAILABLE") and torch.cuda.is_available() and torch.cuda.get_device_capability() >= (8, 0):
        torch.set_float32_matmul_precision("high")
        logger.info("Enabled tensor cores")


def setup_ort_session(model_pt_path: str, map_location: str) -> Any:
    """An ONNX Runtime session for a model file, on the GPU first when `map_location` is "cuda"."""
    ort = _global("ort")
    options = ort.SessionOptions()
    options.intra_op_num_threads = os.cpu_count()
    providers = ["CPUExecutionProvider"]
    if map_location == "cuda":
        providers.insert(0, "CUDAExecutionProvider")
    return ort.InferenceSession(model_pt_path, providers=providers, sess_options=options)


class BaseHandler(abc.ABC):  # noqa: B024  # TorchServe has it so, and users test for ABC
    """Loads the model that the manifest names, and answers with preprocess -> inference -> postprocess.

    A handler overrides the steps that it needs otherwise. `data` is a list with one dict per request.
    """

    def __init__(self) -> None:
        self.model: Any = None
        self.mapping: Optional[Dict[str, str]] = None
        self.device: Any = None
        self.initialized: Optional[bool] = False
        self.context: Any = None
        self.model_pt_path: Optional[str] = None
        self.manifest: Any = None
        self.map_location: Optional[str] = None
        self.explain = False
        self.target = 0
        self.profiler_args: Dict[str, Any] = {}

    def initialize(self, context: Any) -> None:
        """Choose the device, load the model and the labels (index_to_name.json).

        The manifest's modelFile gives an eager model (serializedFile: its state dict); else serializedFile decides by its
        ending: .pt TorchScript, .onnx ONNX Runtime, .so a model of torch.export. Then torch.compile, if section pt2 of the
        configuration asks for it. Raises RuntimeError when there is nothing to load.
        """
        if context is not None and hasattr(context, "model_yaml_config"):
            self.model_yaml_config = context.model_yaml_config
        prepare_torch()
        properties = context.system_properties
        model_dir = properties.get("model_dir")
        self._choose_device(properties.get("gpu_id"))
        self.manifest = context.manifest
        files = self.manifest["model"]
        self.model_pt_path = os.path.join(model_dir, files["serializedFile"]) if "serializedFile" in files else None
        self._load_model(model_dir, files.get("modelFile", ""), properties.get("gpu_id"))
        self._optimize()
        logger.debug("Model file %s loaded successfully", self.model_pt_path)
        self.mapping = load_label_mapping(os.path.join(model_dir, "index_to_name.json"))
        self.initialized = True

    def _choose_device(self, gpu: Any) -> None:
        torch = _global("torch")
        if gpu is not None and torch.cuda.is_available():
            self.map_location = "cuda"
            self.device = torch.device("cuda:%s" % gpu)
        elif gpu is not None and os.environ.get("TS_IPEX_GPU_ENABLE", "false") == "true" and torch.xpu.is_available():
            self.map_location = "xpu"
            self.device = torch.device("xpu:%s" % gpu)
            torch.xpu.device(self.device)
        elif gpu is not None and torch.backends.mps.is_available():
            self.map_location = "mps"
            self.device = torch.device("mps")
        elif _global("XLA_AVAILABLE"):
            self.device = _global("xm").xla_device()
        else:
            self.map_location = "cpu"
            self.device = torch.device("cpu")

    def _load_model(self, model_dir: str, model_file: str, gpu: Any) -> None:
        if model_file:
            self.model = self._load_pickled_model(model_dir, model_file, self.model_pt_path)
            self.model.to(self.device)
            self.model.eval()
            return
        path = self.model_pt_path
        if path is None:
            raise RuntimeError("the manifest names neither a modelFile nor a serializedFile, so there is no model to load")
        if path.endswith(".pt"):
            _importable("torch_tensorrt")  # models made with it need its operators
            self.model = self._load_torchscript_model(path)
            self.model.eval()
        elif path.endswith(".onnx") and _global("ONNX_AVAILABLE"):
            self.model = setup_ort_session(path, self.map_location or "")
        elif path.endswith(".so") and self._use_torch_export_aot_compile() and _global("PT230_AVAILABLE"):
            torch = _global("torch")
            if gpu is not None and torch.cuda.is_available():
                torch.cuda.set_device(self.device)  # the loader takes the current device
            self.model = self._load_torch_export_aot_compile(path)
            logger.warning("torch._export is experimental; the model was loaded with it")
        else:
            raise RuntimeError("No model weights could be loaded from %s: %s" % (path, self._why_not_loaded(path)))

    def _why_not_loaded(self, path: str) -> str:
        if path.endswith(".onnx"):
            return "onnxruntime is not installed in %s" % sys.executable
        if path.endswith(".so"):
            return "it needs pt2.export.aot_compile: true in the model's configuration, and torch 2.3"
        return "without a modelFile it must be .pt (TorchScript), .onnx or .so"

    def _optimize(self) -> None:
        """Compile the model as section pt2 of the configuration says. A compiler that fails leaves the model as it is."""
        torch = _global("torch")
        options = self._compile_options()
        if options is not None and _global("PT2_AVAILABLE"):
            if options.get("backend") == "openvino":
                _importable("openvino.torch")  # registers the backend
            said = ", ".join("%s %s" % pair for pair in options.items())
            try:
                self.model = torch.compile(self.model, **options)
                logger.info("Compiled model with %s", said)
            except Exception as err:
                logger.warning("Compiling the model with %s failed (%s): going on without compilation", said, err)
        elif _global("IPEX_AVAILABLE"):
            self.model = self.model.to(memory_format=torch.channels_last).to(self.device)
            self.model = _global("ipex").optimize(self.model)
            logger.info("Compiled model with ipex")

    def _compile_options(self) -> Optional[Dict[str, Any]]:
        """The arguments for torch.compile, None for no compilation. Raises ValueError when pt2 is neither a str nor a map."""
        config = getattr(self, "model_yaml_config", None)
        if not config or "pt2" not in config:
            return None
        pt2: Any = config["pt2"]
        if type(pt2) not in (str, dict):
            raise ValueError(  # TorchServe's
                "pt2 in the model's configuration should be a str or a map, not %r" % (pt2,)
            )
        if "compile" in pt2:
            options = pt2["compile"]
            if options["enable"] != True:  # noqa: E712  # what YAML made of it may be no bool
                return None
            del options["enable"]  # from the configuration itself: TorchServe's handlers see it go, too
        elif "export" in pt2:
            return None
        else:
            logger.warning(
                "options for torch.compile directly below pt2 are deprecated: put them below pt2.compile, with enable: true"
            )
            options = {"backend": pt2} if isinstance(pt2, str) else pt2
        if "backend" in options and not check_valid_pt2_backend(options["backend"]):
            return None
        return options  # type: ignore[no-any-return]

    def _use_torch_export_aot_compile(self) -> bool:
        """Whether the configuration says pt2.export.aot_compile: true."""
        export = (getattr(self, "model_yaml_config", None) or {}).get("pt2", {}).get("export")
        return isinstance(export, dict) and export.get("aot_compile") == True  # noqa: E712

    def _load_torch_export_aot_compile(self, model_so_path: str) -> Any:
        """Load a .so of torch.export."""
        return _global("torch")._export.aot_load(model_so_path, self.map_location)

    def _load_torchscript_model(self, model_pt_path: str) -> Any:
        """Load a TorchScript model onto the device."""
        return _global("torch").jit.load(model_pt_path, map_location=self.device)

    def _load_pickled_model(self, model_dir: str, model_file: str, model_pt_path: Optional[str]) -> Any:
        """Make the one class that `model_file` defines, without arguments, and load the state dict `model_pt_path` if given.

        Raises RuntimeError when the file is not there and ValueError when it defines no class or several.
        """
        path = os.path.join(model_dir, model_file)
        if not os.path.isfile(path):
            raise RuntimeError("Missing the model.py file: there is no %s" % path)
        classes = list_classes_from_module(importlib.import_module(model_file.split(".", maxsplit=1)[0]))
        if len(classes) != 1:
            raise ValueError("Expected only one class as model definition. %s" % classes)
        model = classes[0]()
        if model_pt_path:
            where = None if self.map_location is None and _global("XLA_AVAILABLE") else self.device
            model.load_state_dict(_global("torch").load(model_pt_path, map_location=where))
        return model

    @timed
    def preprocess(self, data: Any) -> Any:
        """From the rows to what inference takes; here a tensor of them on the device."""
        return _global("torch").as_tensor(data, device=self.device)

    @timed
    def inference(self, data: Any, *args: Any, **kwargs: Any) -> Any:
        """Call the model with a tensor, without gradients; further arguments go to it as they are."""
        with _global("torch").inference_mode():
            return self.model(data.to(self.device), *args, **kwargs)

    @timed
    def postprocess(self, data: Any) -> List[Any]:
        """From the model's output to a list with one element per row; here the tensor as lists."""
        return data.tolist()  # type: ignore[no-any-return]

    def handle(self, data: Any, context: Any) -> Any:
        """Answer a batch: describe it when the request asks for that, else run the steps, the last one explain_handle if asked.

        Reports its time as metric HandlerTime. With ENABLE_TORCH_PROFILER set the steps run under torch's profiler.
        """
        begun = time.time()
        self.context = context
        metrics = context.metrics
        if os.environ.get("ENABLE_TORCH_PROFILER"):
            if not _global("PROFILER_AVAILABLE"):
                raise RuntimeError("ENABLE_TORCH_PROFILER is set, but only torch 1.8.1 and later has the profiler")
            if self.manifest is None:
                self.manifest = context.manifest
            output, _ = self._infer_with_profiler(data=data)
        elif self._is_describe():
            output = [self.describe_handle()]
        else:
            prepared = self.preprocess(data)
            explain = self._is_explain()
            output = self.explain_handle(prepared, data) if explain else self.postprocess(self.inference(prepared))
        metrics.add_time("HandlerTime", round((time.time() - begun) * 1000, 2), None, "ms")
        return output

    def _infer_with_profiler(self, data: Any) -> Tuple[Any, Any]:
        """Run the steps under torch's profiler; give their output and the profiler.

        self.profiler_args are its arguments; without any, CPU and CUDA activities and shapes are recorded, and without
        on_trace_ready a trace goes to /tmp/pytorch_profiler/<model>.
        """
        record_function = _global("record_function")
        arguments = self.profiler_args
        if not arguments:
            activity = _global("ProfilerActivity")
            arguments.update(activities=[activity.CPU, activity.CUDA], record_shapes=True)
        if "on_trace_ready" not in arguments:
            # TorchServe's place, where users look for it.
            folder = os.path.join("/tmp/pytorch_profiler", self.manifest["model"].get("modelName", ""))
            logger.info("Saving chrome trace to : %s", folder)
            arguments["on_trace_ready"] = _global("torch").profiler.tensorboard_trace_handler(folder)
        with _global("profile")(**arguments) as profiler:
            with record_function("preprocess"):
                prepared = self.preprocess(data)
            if self._is_explain():
                with record_function("explain"):
                    output = self.explain_handle(prepared, data)
            else:
                with record_function("inference"):
                    inferred = self.inference(prepared)
                with record_function("postprocess"):
                    output = self.postprocess(inferred)
        logger.info(profiler.key_averages().table(sort_by="cpu_time_total", row_limit=10))
        return output, profiler

    def explain_handle(self, data_preprocess: Any, raw_data: Any) -> Any:
        """Explain the first row: get_insights(data_preprocess, its "data" or "body", its "target" or 0)."""
        logger.info("Calculating Explanations")
        inputs, target = None, 0
        row = raw_data[0]
        if isinstance(row, dict):
            inputs, target = row.get("data") or row.get("body"), row.get("target") or 0
        return self.get_insights(data_preprocess, inputs, target)  # type: ignore[attr-defined]

    def _is_explain(self) -> bool:
        """Whether the first request asks for an explanation; then self.explain stays True."""
        if self.context and self.context.get_request_header(0, "explain") == "True":
            self.explain = True
            return True
        return False

    def _is_describe(self) -> bool:
        """Whether the first request asks for the model's description."""
        return bool(self.context) and self.context.get_request_header(0, "describe") == "True"

    def describe_handle(self) -> Any:
        """The model's description for describe requests, a dict; None here."""
        return None

    def get_device(self) -> Any:
        """The device of the model."""
        return self.device
