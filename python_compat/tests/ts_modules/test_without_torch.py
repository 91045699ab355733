"""Handlers in a Python that has nothing but itself: each in a process of its own that cannot import torch."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

SRC = Path(__file__).parents[2] / "src"

BLOCK = """
import sys
class Block:
    @staticmethod
    def find_spec(name, path=None, target=None):
        if name.split(".")[0] in BLOCKED:
            raise ModuleNotFoundError("No module named %r" % name, name=name)
sys.meta_path.insert(0, Block)
"""


def run(script: str, *blocked: str) -> str:
    whole = "BLOCKED = %r\n" % (blocked,) + BLOCK + textwrap.dedent(script)
    ran = subprocess.run(
        [sys.executable, "-c", whole],
        env=dict(os.environ, PYTHONPATH=str(SRC)),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    assert ran.returncode == 0, ran.stdout
    return ran.stdout


def test_a_handler_on_base_handler_that_uses_no_torch() -> None:
    out = run(
        """
        import logging
        from ts.context import Context
        from ts.utils.util import PredictionException
        from ts.handler_utils.utils import send_intermediate_predict_response
        from ts.torch_handler.base_handler import BaseHandler
        class H(BaseHandler):
            def initialize(self, ctx: Context):
                self.dir = ctx.system_properties["model_dir"]; self.initialized = True
            def preprocess(self, data): return [r.get("data") or r.get("body") for r in data]
            def inference(self, x): return [len(v) for v in x]
            def postprocess(self, y): return y
        class Metrics:
            def add_time(self, *a): print("time", a[0])
        from ts.context import RequestProcessor
        ctx = Context("m", "/", None, 1, None, "0.12.0", True, Metrics(), {})
        ctx.request_processor = [RequestProcessor({"explain": "False"})]
        h = H(); h.initialize(ctx)
        print(h.handle([{"body": bytearray(b"abcd")}], ctx))
        """,
        "torch",
        "yaml",
        "psutil",
        "packaging",
        "numpy",
    )
    assert out == "time HandlerTime\n[4]\n"


@pytest.mark.parametrize(
    "use",
    [
        "BaseHandler().initialize(ctx)",
        "BaseHandler().preprocess([1])",
        "BaseHandler().inference(1)",
        "from ts.torch_handler.base_handler import torch",
        "from ts.torch_handler.base_handler import PT2_AVAILABLE",
    ],
)
def test_what_needs_torch_names_torch(use: str) -> None:
    out = run(
        """
        from ts.torch_handler.base_handler import BaseHandler
        from ts.context import Context
        ctx = Context("m", "/", {"model": {"serializedFile": "m.pt"}}, 1, None, "0.12.0")
        try:
            %s
        except ImportError as err:
            print(type(err).__name__, err.name, err)
        """
        % use,
        "torch",
    )
    assert out.startswith("ImportError torch this handler needs torch, which is not installed in ")


@pytest.mark.parametrize("module", ["vision_handler", "image_classifier", "text_handler", "text_classifier", "object_detector"])
def test_an_import_of_what_is_torch_through_and_through_fails_at_once(module: str) -> None:
    out = run(
        """
        try:
            import ts.torch_handler.%s
        except ImportError as err:
            print(err)
        """
        % module,
        "torch",
    )
    assert "No module named 'torch" in out


def test_the_modules_that_every_handler_imports_import_no_one_elses() -> None:
    out = run(
        """
        before = set(sys.modules)
        import ts, ts.context, ts.utils.util, ts.handler_utils.utils, ts.handler_utils.timer, ts.handler_utils.micro_batching
        import ts.metrics, ts.metrics.metric_cache_yaml_impl, ts.metrics.metrics_store, ts.service, ts.model_loader
        import ts.torch_handler.base_handler, ts.protocol.otf_message_handler, ts.torch_handler.contractions
        import ts.torch_handler.unit_tests.test_utils.mock_context as mock
        context = mock.MockContext()
        assert "gpu_id" not in context.system_properties
        foreign = {name.split(".")[0] for name in set(sys.modules) - before} & set(BLOCKED)
        print(sorted(foreign))
        """,
        "torch",
        "yaml",
        "psutil",
        "packaging",
        "numpy",
        "PIL",
        "requests",
    )
    assert out == "[]\n"
