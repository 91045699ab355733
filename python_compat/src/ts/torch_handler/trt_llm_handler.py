"""The built-in handler trt_llm_handler: text generation by TensorRT-LLM; needs tensorrt-llm and transformers."""

from __future__ import annotations

import json
import logging
import time

from tensorrt_llm.hlapi import LLM, KvCacheConfig, SamplingParams
from transformers import AutoTokenizer

from ts.handler_utils.utils import send_intermediate_predict_response
from ts.torch_handler.base_handler import BaseHandler

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Dict, List, Optional

logger = logging.getLogger(__name__)


class TRTLLMHandler(BaseHandler):
    """Needs asyncCommunication: true. Section handler of the configuration has engine_dir, tokenizer_dir and kv_cache_config.

    A request is {"prompt": text, "streaming": bool (False), and any of SamplingParams}.
    """

    def __init__(self) -> None:
        super().__init__()
        self.trt_llm_engine: Any = None
        self.tokenizer: Any = None
        self.model: Any = None
        self.model_dir: Optional[str] = None
        self.initialized = False

    def initialize(self, ctx: Any) -> None:
        """Load tokenizer and engine."""
        self.model_dir = ctx.system_properties.get("model_dir")
        section = ctx.model_yaml_config.get("handler")
        self.tokenizer = AutoTokenizer.from_pretrained(
            section.get("tokenizer_dir"),
            legacy=False,
            padding_side="left",
            truncation_side="left",
            trust_remote_code=True,
            use_fast=True,
        )
        if self.tokenizer.pad_token_id is None:
            self.tokenizer.pad_token_id = self.tokenizer.eos_token_id
        cache = KvCacheConfig(**section.get("kv_cache_config", {}))
        self.trt_llm_engine = LLM(model=section.get("engine_dir"), tokenizer=self.tokenizer, kv_cache_config=cache)
        self.initialized = True

    async def handle(self, data: List[Any], context: Any) -> List[Any]:
        """Answer one request; reports HandlerTime."""
        begun = time.time()
        output = await self.postprocess(await self.inference(await self.preprocess(data), context))
        context.metrics.add_time("HandlerTime", round((time.time() - begun) * 1000, 2), None, "ms")
        return output

    async def preprocess(self, requests: List[Any]) -> Any:
        """The request's "data" or "body", decoded if it is bytes."""
        assert len(requests) == 1, "Expecting batch_size = 1"
        data = requests[0].get("data") or requests[0].get("body")
        return data.decode("utf-8") if isinstance(data, (bytes, bytearray)) else data

    async def inference(self, data: Dict[str, Any], context: Any) -> List[str]:
        """The whole text; with streaming each token's text goes out as {"text": ...} and the result is empty."""
        prompt, streaming = data.pop("prompt", None), data.pop("streaming", False)
        settings = dict({"end_id": self.tokenizer.eos_token_id, "pad_id": self.tokenizer.pad_token_id}, **data)
        outputs = self.trt_llm_engine.generate_async(prompt, streaming=streaming, sampling_params=SamplingParams(**settings))
        async for output in outputs:
            if not streaming:
                return [output.outputs[0].text]
            text = self.tokenizer.decode([output.outputs[0].token_ids[-1]])
            send_intermediate_predict_response([json.dumps({"text": text})], context.request_ids, "Result", 200, context)
        return [""]

    async def postprocess(self, outputs: List[str]) -> List[str]:
        """The outputs as they are."""
        return outputs
