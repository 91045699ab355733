"""Trains two small tokenizers with Hugging Face's library and writes what it makes of some texts.

    python golden.py [TOKENIZER.JSON OUT]

Without arguments it writes wordpiece.json, bytepairs.json and their .want files beside itself.
"""

import json
import sys
from pathlib import Path
from typing import Iterator

from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors, trainers

HERE = Path(__file__).parent
TEXTS = [
    "A man is eating food.",
    "",
    "   ",
    "Hello, world! It's 3.14 o'clock -- isn't it?",
    "Caf\u00e9 na\u00efve \u00c5ngstr\u00f6m \u0130stanbul",
    "\u4f60\u597d\uff0c\u4e16\u754c abc",
    "tab\tand\nnewline\r\n  many   blanks  ",
    "emoji \U0001f600 \U0001f469\u200d\U0001f680 and \u00ad soft\u200bzero",
    "[CLS] in the text [SEP] <s> too</s>",
    "x" * 120 + " y",
    "we'll they've I'm he'd",
    "\u0391\u03b8\u03ae\u03bd\u03b1 \u041c\u043e\u0441\u043a\u0432\u0430 \u05e9\u05dc\u05d5\u05dd \u0627\u0644\u0633\u0644\u0627\u0645",  # noqa: E501
    "snake_case CamelCase 1234567890 $%^&*",
    "\u00bd \u2167 \u00b2 n\u0303",
    "trailing ",
    "\u3000ideographic\u3000blank",
    "$5 + \u20ac3 = \u00a32 ~ `code` |pipe|",
]


def corpus() -> Iterator[str]:
    for _ in range(3):
        yield from TEXTS
        yield "the man is eating a piece of bread and the girl is carrying a baby while it is there"


def wordpiece() -> Tokenizer:
    t = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    t.normalizer = normalizers.BertNormalizer()
    t.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    t.train_from_iterator(
        corpus(),
        trainers.WordPieceTrainer(vocab_size=420, special_tokens=["[PAD]", "[UNK]", "[CLS]", "[SEP]"], show_progress=False),
    )
    t.post_processor = processors.TemplateProcessing(single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 2), ("[SEP]", 3)])
    return t


def bytepairs() -> Tokenizer:
    t = Tokenizer(models.BPE())
    t.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    trainer = trainers.BpeTrainer(
        vocab_size=420,
        special_tokens=["<s>", "<pad>", "</s>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    t.train_from_iterator(corpus(), trainer)
    t.post_processor = processors.RobertaProcessing(("</s>", 2), ("<s>", 0), add_prefix_space=False)
    return t


def want(t: Tokenizer, path: Path) -> None:
    t.no_truncation()
    t.no_padding()
    path.write_text(json.dumps([{"text": text, "ids": t.encode(text).ids} for text in TEXTS], ensure_ascii=True, indent=0) + "\n")


def main() -> None:
    if len(sys.argv) > 2:
        want(Tokenizer.from_file(sys.argv[1]), Path(sys.argv[2]))
        return
    for name, made in (("wordpiece", wordpiece()), ("bytepairs", bytepairs())):
        made.save(str(HERE / f"{name}.json"), pretty=False)
        want(made, HERE / f"{name}.want")


if __name__ == "__main__":
    main()
