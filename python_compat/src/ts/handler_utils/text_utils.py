"""Tokens of English text, as torchtext's helpers of the same names make them."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Callable, Iterator, List, Optional

# What each character becomes, once double quotes and line break tags are gone.
_SPACED = str.maketrans(
    {
        "'": " '  ",
        ".": " . ",
        ",": " , ",
        "(": " ( ",
        ")": " ) ",
        "!": " ! ",
        "?": " ? ",
        ";": " ",
        ":": " ",
    }
)


def ngrams_iterator(token_list: List[str], ngrams: int) -> Iterator[str]:
    """Yield the tokens, then every 2 tokens in a row joined by a space, every 3, ... up to `ngrams`."""
    for size in range(1, max(ngrams, 1) + 1):
        for start in range(len(token_list) - size + 1):
            yield " ".join(token_list[start : start + size])


def _basic_english_normalize(line: str) -> List[str]:
    return line.lower().replace('"', "").replace("<br />", " ").translate(_SPACED).split()


def _split_tokenizer(x: str) -> List[str]:
    return x.split()


def get_tokenizer(tokenizer: Any, language: str = "en") -> Optional[Callable[[str], List[str]]]:
    """A function from a text to its tokens.

    None splits at white space; "basic_english" also lowers the case and sets punctuation apart (ValueError for another
    `language`). Anything else gives None, as on TorchServe.
    """
    if tokenizer is None:
        return _split_tokenizer
    if tokenizer == "basic_english":
        if language != "en":
            raise ValueError("basic_english is for English only: language must be 'en', not %r" % language)
        return _basic_english_normalize
    return None
