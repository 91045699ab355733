"""Built-in handler text_classifier: labels of a text with their probabilities. It answers one request at a time, no batches."""

from __future__ import annotations

import logging

import torch
import torch.nn.functional as F

from ts.handler_utils.text_utils import ngrams_iterator
from ts.torch_handler.text_handler import TextHandler
from ts.utils.util import map_class_to_label

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Dict, List, Tuple

logger = logging.getLogger(__name__)


class TextClassifier(TextHandler):
    """Cleans the text up, looks up its n-grams, and answers with a dict label -> probability of all classes."""

    ngrams = 2

    def preprocess(self, data: Any) -> Tuple[Any, List[str]]:
        """Give the numbers of the first row's n-grams as a tensor, and its tokens. Raises KeyError for an unknown n-gram."""
        text = data[0].get("data") or data[0].get("body")
        if isinstance(text, (bytes, bytearray)):
            text = text.decode("utf-8")
        text = self._remove_html_tags(text).lower()
        text = self._expand_contractions(text)
        text = self._remove_accented_characters(text)
        tokens = self._tokenize(self._remove_punctuation(text))
        numbers = [self.source_vocab[ngram] for ngram in ngrams_iterator(tokens, self.ngrams)]
        return torch.as_tensor(numbers, device=self.device), tokens

    def inference(self, data: Any, *args: Any, **kwargs: Any) -> Any:
        """Call the model with the numbers and the offset 0 of their only text; further arguments are not used."""
        numbers, _ = data
        return super().inference(numbers, torch.as_tensor([0], device=self.device))

    def postprocess(self, data: Any) -> List[Dict[str, float]]:
        """From the model's scores (1 x classes)."""
        return map_class_to_label(F.softmax(data, dim=1).tolist(), self.mapping)

    def get_insights(self, text_preprocess: Any, _: Any, target: int = 0) -> List[Dict[str, Any]]:
        """The importance of each token for class `target`: [{"importances": ..., "words": ...}]. Needs captum."""
        from captum.attr import TokenReferenceBase

        numbers, tokens = text_preprocess
        reference = TokenReferenceBase().generate_reference(numbers.shape[0], device=self.device).squeeze(0)
        attributions = self.lig.attribute(
            numbers,
            reference,
            additional_forward_args=torch.tensor([0]).to(self.device),
            return_convergence_delta=False,
            target=target,
        )
        return [{"importances": self.summarize_attributions(attributions).tolist(), "words": self.get_word_token(tokens)}]
