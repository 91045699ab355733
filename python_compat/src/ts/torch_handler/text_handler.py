"""The class that handlers of text derive from."""

from __future__ import annotations

import os
import re
import string
import unicodedata

import torch
import torch.nn.functional as F

from ts.handler_utils.text_utils import get_tokenizer
from ts.torch_handler.base_handler import BaseHandler
from ts.torch_handler.contractions import CONTRACTION_MAP
from ts.utils.util import CLEANUP_REGEX

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, List, Match, Optional

CONTRACTIONS_PATTERN = re.compile("(%s)" % "|".join(CONTRACTION_MAP), flags=re.IGNORECASE | re.DOTALL)

_NO_PUNCTUATION = str.maketrans("", "", string.punctuation)


class TextHandler(BaseHandler):
    """Cleans text up and looks its tokens up in the model's vocabulary, source_vocab.pt."""

    def __init__(self) -> None:
        super().__init__()
        self.source_vocab: Any = None
        self.tokenizer: Any = get_tokenizer("basic_english")
        self.input_text: Optional[str] = None
        self.lig = None
        self.initialized = None

    @property
    def lig(self) -> Any:
        """captum's LayerIntegratedGradients of the model's embedding, made when it is first used; None before initialize."""
        made = vars(self).get("_lig")
        if made is None and self.initialized:
            from captum.attr import LayerIntegratedGradients

            made = self._lig = LayerIntegratedGradients(self.model, self.model.embedding)
        return made

    @lig.setter
    def lig(self, value: Any) -> None:
        self._lig = value

    def initialize(self, context: Any) -> None:
        """As BaseHandler, and load the vocabulary: the manifest's sourceVocab as a path, else source_vocab.pt of the model.

        Raises FileNotFoundError when there is none.
        """
        super().initialize(context)
        self.initialized = False
        path = self.manifest["model"].get("sourceVocab") or self.get_source_vocab_path(context)
        self.source_vocab = torch.load(path)
        self.initialized = True

    def get_source_vocab_path(self, ctx: Any) -> str:
        """Where source_vocab.pt is. Raises FileNotFoundError when it is not in the model's folder."""
        path = os.path.join(ctx.system_properties.get("model_dir"), "source_vocab.pt")
        if not os.path.isfile(path):
            raise FileNotFoundError("Missing the source_vocab file: %s; add it to the archive with --extra-files" % path)
        return path

    def _expand_contractions(self, text: str) -> str:
        """Write contractions out, the case of their first letter kept, and drop other apostrophes."""

        def expanded(match: Match[str]) -> str:
            short = match.group()
            full = CONTRACTION_MAP.get(short) or CONTRACTION_MAP[short.lower()]
            return short[0] + full[1:]

        return CONTRACTIONS_PATTERN.sub(expanded, text).replace("'", "")

    def _remove_accented_characters(self, text: str) -> str:
        """Take accents off letters, and drop what is not ASCII then."""
        return unicodedata.normalize("NFKD", text).encode("ascii", "ignore").decode("ascii")

    def _remove_html_tags(self, text: str) -> str:
        """Drop tags and entities of HTML."""
        return CLEANUP_REGEX.sub("", text)

    def _remove_punctuation(self, text: str) -> str:
        """Drop ASCII punctuation."""
        return text.translate(_NO_PUNCTUATION)

    def _remove_puncutation(self, *args: Any, **kwargs: Any) -> str:
        """The name of _remove_punctuation that older handlers know."""
        return self._remove_punctuation(*args, **kwargs)

    def _tokenize(self, text: str) -> List[str]:
        """Split a text into tokens."""
        return self.tokenizer(text)  # type: ignore[no-any-return]

    def get_word_token(self, input_tokens: List[str]) -> List[str]:
        """Tokens without the sign that byte-pair tokenizers write for a blank."""
        return [token.replace("\u0120", "") for token in input_tokens]

    def summarize_attributions(self, attributions: Any) -> Any:
        """Softmax of attributions, divided by the norm of their sums over the last dimension."""
        attributions = F.softmax(attributions, dim=_softmax_dim(attributions.dim()))
        return attributions / torch.norm(attributions.sum(dim=-1))


def _softmax_dim(dimensions: int) -> int:
    """The dimension that torch's softmax takes when none is given, which it warns of and will not do for ever."""
    return 0 if dimensions in (0, 1, 3) else 1
