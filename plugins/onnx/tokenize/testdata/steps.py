"""Tokenizers with every step that a tokenizer.json may have, as JSON, and what Hugging Face's library makes of texts with them.

    python steps.py

Writes steps.json beside itself: [{"tokenizer", "cases": [{"text", "ids", "types"}]}], and batches.json, what it fills up and how.
Without ids there is an error; without types all are 0. The model of most has a token for each byte and one for the end of a
piece, so that every piece can be told from its tokens.
"""

import json
import random
from pathlib import Path
from typing import Any, Dict, Iterator, List, Optional, Tuple

from tokenizers import Tokenizer

HERE = Path(__file__).parent
Json = Dict[str, Any]
BYTES = {f"<0x{b:02X}>": b for b in range(256)}
MODEL: Json = {"type": "BPE", "vocab": BYTES, "merges": [], "byte_fallback": True, "end_of_word_suffix": "\x01"}
FIRST: Json = {"type": "Metaspace", "replacement": "\u2581", "prepend_scheme": "first", "split": True}
PATTERNS = [
    *(r"\s+", r" {2,}", r"\s{2,}|[\n\r\t]", r"^ $", r"[aeiou]", r"\p{Punct}", r"[[:upper:]]", r"(?<=a).", r"(?i:THE)", r"$"),
    r"[!\"\#\$\%\&\'\(\)\*\+\,\-\.\:\;\=\?\@\[\\\]\^_\`\{\|\}\~]",
]
BEHAVIORS = ["Removed", "Isolated", "MergedWithPrevious", "MergedWithNext", "Contiguous"]
SPECIAL = {
    "<s>": {"id": "<s>", "ids": [700, 701], "tokens": ["<s>", "<t>"]},
    "</s>": {"id": "</s>", "ids": [702], "tokens": ["</s>"]},
}
BERT: Json = {"type": "BertProcessing", "sep": ["s", 705], "cls": ["c", 706]}
ROBERTA: Json = {
    "type": "RobertaProcessing",
    "sep": ["s", 705],
    "cls": ["c", 706],
    "trim_offsets": True,
    "add_prefix_space": True,
}
TEXTS = [
    *(
        "",
        " ",
        "   ",
        "a",
        "The naive cat.  It's 12,5 \u20ac!\n",
        "\tx\u00a0\u3000y  ",
        "Stra\u00dfe \u0130stanbul Caf\u00e9 e\u0301a\u0300\u0323",
    ),
    *(
        "\u4f60\u597d\uff0c\u4e16\u754c \u30ab\u30bf\u30fc\u3072\u3089 abc",
        "\u041c\u043e\u0441\u043a\u0432\u0430 \u05e9\u05dc\u05d5\u05dd \u0627\u0644",
    ),
    *(
        "\U0001f469\u200d\U0001f680\U0001f44d\U0001f3fd \u2764\ufe0f1\ufe0f\u20e3",
        "\ufffd\ufffd <mask>  \n<x>   b [MASK]",
        "\u2581\u2581the\u2581 \u0928\u092e\u0938\u094d",
    ),
]


def tokenizer(**parts: Any) -> Json:
    whole: Json = {"version": "1.0", "truncation": None, "padding": None, "added_tokens": [], "normalizer": None}
    whole.update({"pre_tokenizer": None, "post_processor": None, "decoder": None, "model": MODEL})
    whole.update(parts)
    return whole


def added(content: str, **flags: bool) -> Json:
    return {
        "id": 999,
        "content": content,
        **dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized", "special"), False),
        **flags,
    }


def regex(pattern: str) -> Json:
    return {"Regex": pattern}


def split(pattern: Json, behavior: str = "Isolated", invert: bool = False) -> Json:
    return {"type": "Split", "pattern": pattern, "behavior": behavior, "invert": invert}


def replace(pattern: Json, content: str) -> Json:
    return {"type": "Replace", "pattern": pattern, "content": content}


def bert(rng: random.Random) -> Json:
    flags = {name: rng.random() < 0.5 for name in ("clean_text", "handle_chinese_chars", "lowercase")}
    return {"type": "BertNormalizer", "strip_accents": rng.choice([None, True, False]), **flags}


def member(name: str, kind: int = 0) -> Json:
    return {"Sequence" if name in "AB" else "SpecialToken": {"id": name, "type_id": kind}}


def template(single: List[Json], pair: Optional[List[Json]] = None) -> Json:
    pair = pair or [member("A"), member("B", 1)]
    return {"type": "TemplateProcessing", "single": single, "pair": pair, "special_tokens": SPECIAL}


def sequence(of: str, steps: List[Json]) -> Json:
    return {"type": "Sequence", of: steps}


def single_steps() -> Iterator[Json]:
    for delimiter in ("a", " ", "\u2581"):
        yield tokenizer(pre_tokenizer={"type": "CharDelimiterSplit", "delimiter": delimiter})
    for length in ({}, {"length": 1}, {"length": 3}):
        yield tokenizer(pre_tokenizer={"type": "FixedLength", **length})
    scripts: Json = {"type": "UnicodeScripts"}
    yield tokenizer(pre_tokenizer=scripts)
    yield tokenizer(
        pre_tokenizer=sequence(
            "pretokenizers", [{"type": "WhitespaceSplit"}, scripts, {"type": "Digits", "individual_digits": True}]
        )
    )
    yield tokenizer(pre_tokenizer=split({"String": ""}, "MergedWithNext"))
    yield tokenizer(normalizer={"type": "ByteLevel"}, added_tokens=[added("\u00e9", normalized=True)])
    yield tokenizer(
        normalizer=sequence("normalizers", [{"type": "ByteLevel"}, replace({"String": "\u0120"}, "_")]), pre_tokenizer=FIRST
    )
    yield tokenizer(normalizer={"clean_text": True, "handle_chinese_chars": True, "strip_accents": None, "lowercase": True})
    for pattern in PATTERNS:
        yield tokenizer(normalizer=replace(regex(pattern), " "), pre_tokenizer=FIRST)


def processors() -> Iterator[Json]:
    xlnet = template([member("A"), member("</s>"), member("<s>", 2)])
    yield tokenizer(
        post_processor=xlnet, truncation={"direction": "Left", "max_length": 8, "strategy": "LongestFirst", "stride": 0}
    )
    yield tokenizer(post_processor=template([member("A"), member("<s>"), member("A", 4)]))
    yield tokenizer(post_processor=template([member("<s>")]))
    for steps in (
        [BERT, template([member("<s>", 3), member("A", 2), member("</s>", 1)])],
        [template([member("<s>", 3), member("A", 2), member("</s>", 1)]), BERT],
        [template([member("<s>", 3), member("A", 2)]), template([member("A")], [member("B", 1), member("</s>", 2), member("A")])],
        [template([member("<s>", 3), member("A", 2)]), ROBERTA],
        [ROBERTA, {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True}, BERT],
        [],
    ):
        right = {"direction": "Right", "max_length": 12, "strategy": "OnlyFirst", "stride": 0}
        yield tokenizer(post_processor=sequence("processors", steps), truncation=right)


def tokens() -> Iterator[Json]:
    yield tokenizer(
        added_tokens=[added("a"), added("<x>", rstrip=True), added("  "), added("a", lstrip=True), added("\n", lstrip=True)]
    )
    yield tokenizer(
        added_tokens=[added("the", single_word=True, normalized=True), added("<mask>", lstrip=True, rstrip=True), added(" ")]
    )
    strip = {"type": "Strip", "strip_left": True, "strip_right": True}
    yield tokenizer(normalizer=strip, added_tokens=[added("  a ", normalized=True), added("[MASK]", normalized=True)])


def model_forms() -> Iterator[Json]:
    """Models without their type, without the token for what is unknown, without some bytes, and that leave out every merge."""
    vocab = {"a": 0, "b": 1, "ab": 2, "\u00e9": 3, "u": 4, "##b": 5, "t": 6, "h": 7, "e": 8, "th": 9, "the": 10}
    merges = ["#version: 0.2", "a b", "t h", "th e"]
    some = {**vocab, **{f"<0x{b:02X}>": 20 + b for b in range(256) if b != 0x80 and b != 0x27}}
    pieces = [[token, -1.0 - number] for token, number in vocab.items()]
    words: Json = {"type": "WhitespaceSplit"}
    for model in (
        *({"vocab": vocab, "merges": merges, "unk_token": unknown} for unknown in (None, "", "u")),
        {"type": "BPE", "vocab": some, "merges": merges, "unk_token": "u", "byte_fallback": True, "fuse_unk": True},
        {"type": "BPE", "vocab": vocab, "merges": merges, "unk_token": "u", "dropout": 1.0, "ignore_merges": True},
        *(
            {"vocab": vocab, "unk_token": u, "continuing_subword_prefix": "##", "max_input_chars_per_word": 9}
            for u in ("u", "none")
        ),
        *({"vocab": vocab, "unk_token": unknown} for unknown in ("u", "none")),
        *({"vocab": pieces, "unk_id": unknown} for unknown in (4, None)),
        {"vocab": [*pieces, *([token, -9.0] for token in some if "0x" in token)], "unk_id": 4, "byte_fallback": True},
    ):
        yield tokenizer(model=model, pre_tokenizer=words, normalizer={"type": "Lowercase"})


def normalizer(rng: random.Random, depth: int = 0) -> Json:
    plain = ["Strip", "StripAccents", "NFC", "NFD", "NFKC", "NFKD", "Lowercase", "Nmt", "Replace", "Prepend", "ByteLevel", "Bert"]
    kind = rng.choice(plain if depth > 1 else [*plain, "Sequence", "Sequence"])
    if kind == "Sequence":
        return sequence("normalizers", [normalizer(rng, depth + 1) for _ in range(rng.randint(0, 4))])
    if kind == "Strip":
        return {"type": kind, "strip_left": rng.random() < 0.7, "strip_right": rng.random() < 0.7}
    if kind == "Replace":
        return replace(pattern(rng), rng.choice(["", " ", "\u2581", "\u00e9x"]))
    if kind == "Prepend":
        return {"type": kind, "prepend": rng.choice(["\u2581", "ab"])}
    return bert(rng) if kind == "Bert" else {"type": kind}


def pattern(rng: random.Random) -> Json:
    return rng.choice([regex(rng.choice(PATTERNS)), {"String": rng.choice([" ", "a", "the", "\u2581", "e\u0301"])}])


def pre_tokenizer(rng: random.Random, depth: int = 0) -> Json:
    plain = [
        "BertPreTokenizer",
        "ByteLevel",
        "CharDelimiterSplit",
        "Metaspace",
        "Metaspace",
        "Whitespace",
        "Split",
        "Punctuation",
    ]
    plain += ["WhitespaceSplit", "Digits", "UnicodeScripts", "FixedLength"]
    kind = rng.choice(plain if depth > 1 else [*plain, "Sequence", "Sequence"])
    if kind == "Sequence":
        return sequence("pretokenizers", [pre_tokenizer(rng, depth + 1) for _ in range(rng.randint(0, 3))])
    if kind == "Split":
        return split(pattern(rng), rng.choice(BEHAVIORS), rng.random() < 0.4)
    members: Dict[str, Json] = {
        "ByteLevel": {"add_prefix_space": rng.random() < 0.5, "trim_offsets": True, "use_regex": rng.random() < 0.5},
        "CharDelimiterSplit": {"delimiter": rng.choice("a \u2581.\n")},
        "Metaspace": {
            "replacement": "\u2581",
            "prepend_scheme": rng.choice(["first", "always", "never"]),
            "split": rng.random() < 0.6,
        },
        "Punctuation": {"behavior": rng.choice(BEHAVIORS)},
        "Digits": {"individual_digits": rng.random() < 0.5},
        "FixedLength": {"length": rng.randint(1, 7)},
    }
    return {"type": kind, **members.get(kind, {})}


def by_chance(seed: int, count: int) -> Iterator[Json]:
    rng = random.Random(seed)
    contents = ["<mask>", "[MASK]", "the cat", "cat", "naive", "\u00c9t"]  # no normalizer makes nothing of these
    for _ in range(count):
        extra = [
            added(content, **{flag: rng.random() < 0.3 for flag in ("single_word", "lstrip", "rstrip", "normalized")})
            for content in rng.sample(contents, rng.randint(0, 3))
        ]
        yield tokenizer(
            normalizer=normalizer(rng) if rng.random() < 0.8 else None,
            pre_tokenizer=FIRST if rng.random() < 0.3 else pre_tokenizer(rng),
            added_tokens=extra,
        )


def everything(chance: int) -> Iterator[Json]:
    for made in (single_steps(), processors(), tokens(), model_forms(), by_chance(11, chance)):
        yield from made


def encoded(t: Tokenizer, text: str) -> Json:
    try:
        e = t.encode(text)
    except Exception:  # there is no token for something
        return {"text": text, "ids": None}
    return {"text": text, "ids": e.ids, **({"types": e.type_ids} if any(e.type_ids) else {})}


def cases(file: Json, texts: List[str]) -> List[Json]:
    """Some texts, and some tokenizers, are more than the library can bear: they are left out."""
    made: List[Json] = []
    t: Optional[Tokenizer] = None
    for text in texts:
        try:
            t = t or Tokenizer.from_str(json.dumps(file))
            made.append(encoded(t, text))
        except BaseException as e:
            if type(e).__name__ != "PanicException":
                raise
    return made


def batches() -> Iterator[Tuple[Json, List[str]]]:
    around = template([member("A"), member("</s>"), member("<s>", 2)])
    for direction in ("Left", "Right"):
        for strategy, multiple in (("BatchLongest", None), ("BatchLongest", 8), ({"Fixed": 11}, None), ({"Fixed": 13}, 5)):
            filled = {"strategy": strategy, "direction": direction, "pad_to_multiple_of": multiple}
            filled.update({"pad_id": 5, "pad_type_id": 3, "pad_token": "<pad>"})
            yield tokenizer(padding=filled, post_processor=around), ["", "a", "ab cd", "\u00e9"]


def batch(file: Json, texts: List[str]) -> Json:
    made = Tokenizer.from_str(json.dumps(file)).encode_batch(texts)
    rows = [{"ids": e.ids, "mask": e.attention_mask, "types": e.type_ids} for e in made]
    return {"tokenizer": file, "texts": texts, "rows": rows}


def main() -> None:
    vocab = json.dumps(BYTES, separators=(",", ":"))
    made = [{"tokenizer": file, "cases": cases(file, TEXTS)} for file in everything(0)]
    for name, all_of_them in (("steps", made), ("batches", [batch(*b) for b in batches()])):
        lines = ",\n".join(json.dumps(one, separators=(",", ":")).replace(vocab, '"BYTES"') for one in all_of_them)
        (HERE / f"{name}.json").write_text(f"[\n{lines}\n]\n")


if __name__ == "__main__":
    main()
