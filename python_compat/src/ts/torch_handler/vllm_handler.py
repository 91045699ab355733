"""The built-in handler vllm_handler: the OpenAI API of a vLLM engine; needs vllm (0.6, as TorchServe 0.12)."""

from __future__ import annotations

import asyncio
import logging
import os
import time

from vllm import AsyncEngineArgs, AsyncLLMEngine
from vllm.entrypoints.openai.protocol import ChatCompletionRequest, CompletionRequest, ErrorResponse
from vllm.entrypoints.openai.serving_chat import OpenAIServingChat
from vllm.entrypoints.openai.serving_completion import OpenAIServingCompletion
from vllm.entrypoints.openai.serving_engine import LoRAModulePath

from ts.handler_utils.utils import send_intermediate_predict_response
from ts.torch_handler.base_handler import BaseHandler
from ts.utils.util import PredictionException

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Dict, List, Optional

logger = logging.getLogger(__name__)

_END_OF_STREAM = "data: [DONE]\n\n"


class _Connection:
    """What vLLM asks its web server about a request: the client is always there."""

    def __init__(self) -> None:
        self.headers: Dict[str, str] = {}

    async def is_disconnected(self) -> bool:
        return False


class VLLMHandler(BaseHandler):
    """Needs asyncCommunication: true; section handler of the configuration has model_path or vllm_engine_config.

    It may have adapters (name -> path) and chat_template, too. The request's header url_path, the part of the URL behind the
    model's name, chooses v1/models, v1/completions or v1/chat/completions.
    """

    def __init__(self) -> None:
        super().__init__()
        self.vllm_engine: Any = None
        self.model_name: Optional[str] = None
        self.model_dir: Optional[str] = None
        self.lora_ids: Dict[str, Any] = {}
        self.adapters: Any = None
        self.chat_completion_service: Any = None
        self.completion_service: Any = None
        self.raw_request: Any = None
        self.initialized = False

    def initialize(self, ctx: Any) -> None:
        """Start the engine."""
        self.model_dir = ctx.system_properties.get("model_dir")
        section = (ctx.model_yaml_config or {}).get("handler", {})
        arguments = self._get_vllm_engine_config(section)
        os.environ["VLLM_WORKER_MULTIPROC_METHOD"] = "spawn"
        self.vllm_engine = AsyncLLMEngine.from_engine_args(arguments)
        self.adapters = section.get("adapters", {})
        model_config = asyncio.get_event_loop().run_until_complete(self.vllm_engine.get_model_config())
        names = arguments.served_model_name or [arguments.model]
        common = {
            "lora_modules": [LoRAModulePath(name, path) for name, path in self.adapters.items()],
            "prompt_adapters": None,
            "request_logger": None,
        }
        self.completion_service = OpenAIServingCompletion(self.vllm_engine, model_config, names, **common)
        self.chat_completion_service = OpenAIServingChat(
            self.vllm_engine, model_config, names, "assistant", chat_template=section.get("chat_template"), **common
        )
        self.raw_request = _Connection()
        self.initialized = True

    async def handle(self, data: List[Any], context: Any) -> List[Any]:
        """Answer one request; reports HandlerTime."""
        begun = time.time()
        output = await self.postprocess(await self.inference(await self.preprocess(data, context), context))
        context.metrics.add_time("HandlerTime", round((time.time() - begun) * 1000, 2), None, "ms")
        return output

    async def preprocess(self, requests: List[Any], context: Any) -> List[Any]:
        """The request's "data" or "body", decoded if it is bytes."""
        assert len(requests) == 1, "Expecting batch_size = 1"
        data = requests[0].get("data") or requests[0].get("body")
        return [data.decode("utf-8") if isinstance(data, (bytes, bytearray)) else data]

    async def inference(self, input_batch: List[Any], context: Any) -> List[Any]:
        """Ask the engine. A streamed answer goes out piece by piece, and its last piece is the result.

        Raises PredictionException with status 404 for another path.
        """
        path = context.get_request_header(0, "url_path")
        if path == "v1/models":
            return [(await self.chat_completion_service.show_available_models()).model_dump()]
        if path == "v1/completions":
            request = CompletionRequest.model_validate(input_batch[0])
            answer = await self.completion_service.create_completion(request, self.raw_request)
        elif path == "v1/chat/completions":
            request = ChatCompletionRequest.model_validate(input_batch[0])
            answer = await self.chat_completion_service.create_chat_completion(request, self.raw_request)
        else:
            raise PredictionException("Unknown API endpoint: %s" % path, 404)
        if isinstance(answer, ErrorResponse) or not request.stream:
            return [answer.model_dump()]
        piece = ""
        async for piece in answer:
            if piece != _END_OF_STREAM:
                send_intermediate_predict_response([piece], context.request_ids, "Result", 200, context)
        return [piece]

    async def postprocess(self, inference_outputs: List[Any]) -> List[Any]:
        """The outputs as they are."""
        return inference_outputs

    def _get_vllm_engine_config(self, handler_config: Dict[str, Any]) -> Any:
        """The engine's arguments; those of vllm_engine_config that vLLM does not know are left out."""
        given = handler_config.get("vllm_engine_config", {})
        model = given.get("model") or ""
        if not model:
            model = handler_config.get("model_path") or ""
            assert model, "please define model in vllm_engine_config or model_path in handler"
            below = os.path.join(self.model_dir or "", model)
            if os.path.exists(below):
                model = below
            else:
                logger.debug("there is no %s: vLLM gets %s", below, model)
        arguments = AsyncEngineArgs(model=model)
        self._set_attr_value(arguments, given)
        return arguments

    def _set_attr_value(self, obj: Any, config: Dict[str, Any]) -> None:
        known = vars(obj)
        for name, value in config.items():
            if name in known:
                setattr(obj, name, value)
