import inspect

import ts
from ts.context import Context, RequestProcessor
from ts.handler_utils.micro_batching import MicroBatching
from ts.handler_utils.text_utils import get_tokenizer, ngrams_iterator
from ts.handler_utils.timer import timed
from ts.handler_utils.utils import import_class
from ts.handler_utils.utils import send_intermediate_predict_response as new_spelling
from ts.metrics.dimension import Dimension
from ts.metrics.metric_type_enum import MetricTypes
from ts.metrics.metrics_store import MetricsStore
from ts.protocol.otf_message_handler import send_intermediate_predict_response as old_spelling
from ts.service import PredictionException, emit_metrics
from ts.torch_handler import base_handler
from ts.torch_handler.base_handler import BaseHandler
from ts.torch_handler.image_classifier import ImageClassifier
from ts.torch_handler.image_segmenter import ImageSegmenter
from ts.torch_handler.object_detector import ObjectDetector
from ts.torch_handler.text_classifier import TextClassifier
from ts.torch_handler.text_handler import TextHandler
from ts.torch_handler.vision_handler import VisionHandler
from ts.utils.util import (
    CLEANUP_REGEX,
    PT2Backend,
    check_valid_pt2_backend,
    get_yaml_config,
    list_classes_from_module,
    load_label_mapping,
    map_class_to_label,
)

FUNCTIONS = (
    Context.__init__,
    Context.set_response_status,
    MicroBatching.__init__,
    get_tokenizer,
    ngrams_iterator,
    import_class,
    new_spelling,
    emit_metrics,
    check_valid_pt2_backend,
    get_yaml_config,
    list_classes_from_module,
    load_label_mapping,
    map_class_to_label,
    BaseHandler._load_pickled_model,
    ImageClassifier.postprocess,
)
CLASSES = (ImageClassifier, ImageSegmenter, ObjectDetector, TextClassifier, TextHandler, VisionHandler, BaseHandler)


def handle(data, context):
    if data is None:
        return None
    report = {
        "version": ts.__version__,
        "parameters": {f.__name__: list(inspect.signature(f).parameters) for f in FUNCTIONS},
        "bases": {c.__name__: [b.__name__ for b in c.__mro__] for c in CLASSES},
        "errors": [str(PredictionException("message", 418)), str(PredictionException("message"))],
        "dimension": [str(Dimension("Level", "Model")), Dimension("Level", "Model").to_dict()],
        "types": [str(member.value) for member in MetricTypes],
        "tokens": get_tokenizer("basic_english")("It's (almost) ready, isn't it?<br />Yes!"),
        "ngrams": list(ngrams_iterator(["here", "we", "are"], 2)),
        "backends": [member.value for member in PT2Backend],
        "cleaned": CLEANUP_REGEX.sub("", "<b>bold</b> &amp; plain"),
        "imported": import_class("ts.context.RequestProcessor") is RequestProcessor,
        "module": base_handler.BaseHandler is BaseHandler,
        "flags": [base_handler.PT2_AVAILABLE, base_handler.PROFILER_AVAILABLE],
        "topk": ImageClassifier.topk,
        "threshold": ObjectDetector.threshold,
        "callable": [callable(timed), callable(old_spelling), callable(MetricsStore)],
    }
    return [report for _ in data]
