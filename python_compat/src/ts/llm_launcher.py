"""TorchServe's launcher for large language models, which Flambeau does not have: each name says what to use instead."""

from __future__ import annotations

import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, NoReturn

_INSTEAD = """\
ts.llm_launcher is not part of Flambeau. Make the model's archive and serve it:
  torch-model-archiver --model-name llm --version 1.0 --handler vllm_handler --config-file model-config.yaml
  torchserve --start --model-store . --models llm.mar --disable-token-auth
where model-config.yaml has asyncCommunication: true and, below handler, model_path or vllm_engine_config (for the handler
trt_llm_handler: engine_dir and tokenizer_dir)."""


def _refuse(*args: Any, **kwargs: Any) -> NoReturn:
    """Raise RuntimeError, which says what to use instead."""
    raise RuntimeError(_INSTEAD)


create_tensorrt_llm_engine = get_model_config = create_mar_file = main = _refuse

if __name__ == "__main__":
    sys.exit(_INSTEAD)
