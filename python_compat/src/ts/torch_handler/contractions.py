"""English contractions and what they stand for, for handlers that clean text up."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Dict, Iterator, Tuple

# Made by rule: what stands before "'d", "'ll" and so on. The entries are TorchServe's, as vocabularies are made with them.
_WOULD = ("he", "i", "it", "she", "that", "there", "they", "we", "you")
_WILL = ("he", "how", "i", "it", "she", "they", "we", "what", "who", "you")
_WILL_HAVE = ("he", "i", "it", "she", "they", "we", "what", "who", "you")
_IS = ("he", "how", "it", "she", "that", "there", "what", "when", "where", "who", "why")
_ARE = ("they", "we", "what", "you")
_HAVE = ("i", "so", "they", "to", "we", "what", "when", "where", "who", "why", "you")
_NOT = (
    "are",
    "could",
    "did",
    "does",
    "do",
    "had",
    "has",
    "have",
    "is",
    "might",
    "must",
    "need",
    "ought",
    "should",
    "was",
    "were",
    "would",
)
_NOT_HAVE = ("could", "had", "might", "must", "need", "ought", "should", "would")
_MODAL_HAVE = ("could", "might", "must", "should", "will", "would")
_IRREGULAR = {
    "ain't": "is not",
    "can't've": "cannot have",
    "can't": "cannot",
    "'cause": "because",
    "how'd": "how did",
    "how'd'y": "how do you",
    "i'm": "i am",
    "let's": "let us",
    "ma'am": "madam",
    "mayn't": "may not",
    "o'clock": "of the clock",
    "so's": "so as",
    "shan't've": "shall not have",
    "shan't": "shall not",
    "sha'n't": "shall not",
    "where'd": "where did",
    "won't've": "will not have",
    "won't": "will not",
    "y'all'd've": "you all would have",
    "y'all'd": "you all would",
    "y'all're": "you all are",
    "y'all've": "you all have",
    "y'all": "you all",
}


def _pairs() -> Iterator[Tuple[str, str]]:
    for word in _NOT_HAVE:
        yield word + "n't've", word + " not have"
    for word in _WOULD:
        yield word + "'d've", word + " would have"
    for word in _WILL_HAVE:
        yield word + "'ll've", word + " will have"
    yield from _IRREGULAR.items()
    for word in _NOT:
        yield word + "n't", word + " not"
    for word in _WOULD:
        yield word + "'d", word + " would"
    for word in _WILL:
        yield word + "'ll", word + " will"
    for word in _ARE:
        yield word + "'re", word + " are"
    for word in _HAVE + _MODAL_HAVE:
        yield word + "'ve", word + " have"
    for word in _IS:
        yield word + "'s", word + " is"


# In the order of the alphabet: the first entry that fits is taken, so "can't've" becomes "cannotve", as on TorchServe.
CONTRACTION_MAP: Dict[str, str] = dict(sorted(_pairs()))
