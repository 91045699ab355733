"""Tokenizers of the families that split texts by regular expressions, and what Hugging Face's library makes of these."""

import json
from typing import Any, Callable, Dict, Iterator, List, Tuple

from tokenizers import AddedToken, Regex, Tokenizer, models, normalizers, pre_tokenizers, processors, trainers

GPT4 = r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]++[\r\n]*|\s*[\r\n]|\s+(?!\S)|\s+"
LLAMA3 = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
QWEN2 = LLAMA3.replace(r"\p{N}{1,3}", r"\p{N}")
GPT4O = "|".join(
    [
        r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?",
        r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?",
        r"\p{N}{1,3}",
        r" ?[^\s\p{L}\p{N}]+[\r\n/]*",
        r"\s*[\r\n]+",
        r"\s+(?!\S)",
        r"\s+",
    ]
)
HAN = r"[\p{Han}]+|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
DEEPSEEK = "|".join(
    [
        r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+",
        r"[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+",
        r" ?[\p{P}\p{S}]+[\r\n]*",
        r"\s*[\r\n]+",
        r"\s+(?!\S)",
        r"\s+",
    ]
)
BLOOM = " ?[^(\\s|[.,!?\u2026\u3002\uff0c\u3001\u0964\u06d4\u060c])]+"

# What is not in one of the above: each is tried on all texts, or refused by both or here.
PATTERNS = [
    *(r"\s", r"\S+", r"\d+", r"\D+", r"\w+", r"\W+", r"[\w]", r"[^\w]+", r"[\d\s]+", r"[^\S\n]+", r"[^\D]", r"\R", r".", r".+"),
    *(r"^.", r"^", r".$", r"$", r"\A.", r".\z", r".\Z", r"\b", r"\B", r"\b\w", r"\w\b", r"(?<=a)[a-z]"),
    *(r"(?<!a)[a-z]", r"(?<=\s)."),
    *(r"x*", r"a?", r"", r"a|", r"(?:)", r"(?=a)", r"a*?", r"[a-z]+?[aeiou]", r"[a-z]{2}", r"[a-z]{2,}"),
    *(r"[a-z]{,2}", r"[a-z]{2,3}?"),
    *(r"[a-z]{1,2}+", r"[a-z]++", r"[a-z]*+n", r"[a-z]?+n", r"(?>[a-z]+)n", r"(an|the)", r"(?<![^\s])the(?!\w)"),
    *(r"a{", r"{", r"}", r"]"),
    *(r"a{x}", r"[a-]", r"[-a]", r"[a\-z]", r"[\]a]", r"[a-z&&[^aeiou]]+", r"[^a-z&&[^aeiou]]+", r"[[a-c]x-z]+", r"[^[a-c]x-z]+"),
    *(r"[a[^b]]", r"[\b]", r"[.]", r"[\s.]", r"\.", r"\/|\'|\"|\-|\@|\ |\_", r"\t|\n|\r|\f|\v|\a|\e"),
    *(r"\x41|\x{e9}|\u00e9", r"(?i:k)"),
    *(r"(?i:[a-z])+", r"(?i)AN|THE", r"(?i:a(?-i:n))", r"(?i:'s)", r"\p{^L}+", r"\P{L}+", r"[\p{^L}]"),
    *(r"[\P{L}\p{Lu}]+", r"\p{Letter}"),
    *(r"\p{han}", r"\p{Cyrillic}+", r"\p{decimal number}", r"\p{Uppercase_Letter}", r"[\p{Hiragana}\p{Katakana}]+"),
    r"\p{Cc}|\p{Cf}",
    *(r"(a)(n)", r"a(?:n|t(?=h))", r"[!-/:-~]+", "[\u4e00-\u9fa5]+", "[A-Za-z\u00b5\u00c0-\u00d6]+", r"\s+$"),
    *(r"[0-9][0-9][0-9]", r"[\r\n]"),
    *(
        r"\p{Punct}+",
        r"[[:alpha:]]+",
        r"[[:^alpha:]]",
        r"[[:punct:]\s]+",
        r"[^[:alnum:]]+",
        r"[a-c[:digit:]]+",
        r"\h+",
        r"\H+",
        r"[\h-]+",
        r"[\H&&[^\s]]+",
    ),
    *(
        r"(?<word>[a-z]+)n",
        r"\p{Alpha}+|\P{Alnum}",
        r"[\P{Alpha}a]+",
        r"\p{^Upper}+",
        r"[^\P{Alpha}]+",
        r"[[:upper:]][[:lower:]]*",
    ),
]

CATEGORIES = "L Lu Ll Lt Lm Lo M Mn Mc Me N Nd Nl No P Pc Pd Ps Pe Pi Pf Po S Sm Sc Sk So Z Zs Zl Zp Cc Cf Co"
SCRIPTS = "Han Latin Cyrillic Hiragana Katakana Hangul Thai Arabic Greek Hebrew Devanagari Bopomofo"

# What a letter behind a backslash and the properties stand for, character by character.
NAMES = "alnum alpha ascii blank cntrl digit lower punct space upper word xdigit"
SETS = [
    *(f"[[:{name}:]]" for name in NAMES.split()),
    *(f"\\p{{{name}}}" for name in NAMES.replace("word ", "").split()),
    *(r"\h", r"[^\h]", r"[[:^alpha:]]", r"[^[:punct:]]", r"[[:^punct:]a]", r"\P{Alpha}"),
    *(r"\s", r"\S", r"\d", r"\D", r"\w", r"\W", r"[\w]", r"[^\w]", r"[\P{L}\p{Lu}\S]", r"[^\P{L}\p{Lu}\n]", r"\R"),
    *(f"\\p{{{name}}}" for name in CATEGORIES.split()),
    *(f"\\p{{{name}}}" for name in SCRIPTS.split()),
]

BEHAVIORS = ["removed", "isolated", "merged_with_previous", "merged_with_next", "contiguous"]
Train = Callable[[Tokenizer, trainers.Trainer], Tokenizer]


def split(pattern: Any, behavior: str = "isolated", invert: bool = False) -> pre_tokenizers.PreTokenizer:
    return pre_tokenizers.Split(pattern, behavior, invert)


def letters() -> pre_tokenizers.PreTokenizer:
    return pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)


def regexes(trained: Train) -> Iterator[Tuple[str, Tokenizer]]:
    """As GPT-4, GPT-4o, Llama 3, Qwen 2, DeepSeek, StarCoder, Falcon, BLOOM and Gemma split."""
    sequence, digits = pre_tokenizers.Sequence, pre_tokenizers.Digits
    coder = [
        *(split(Regex("[\r\n]")), split(Regex("\\s?[A-Za-z\u00b5\u00c0-\u00d6\u00d8-\u00f6\u00f8-\u01ba]+"))),
        *(split(Regex("\\s?[!-/:-~\uff01-\uff0f\uff1a-\uff5e\u2018-\u201f\u3000-\u3002]+")), split(Regex("\\s+$"))),
        *(split(Regex("[\u4e00-\u9fa5\u0800-\u4e00\uac00-\ud7ff]+")), digits(individual_digits=True), letters()),
    ]
    falcon = [
        *(pre_tokenizers.Punctuation("contiguous"), pre_tokenizers.ByteLevel(add_prefix_space=False)),
        *(digits(individual_digits=False), split(Regex("[0-9][0-9][0-9]"))),
    ]
    forms = {
        "gpt4": split(Regex(GPT4)),
        "gpt4_removed": split(Regex(GPT4), "removed", invert=True),
        "gpt4o": split(Regex(GPT4O)),
        "llama3": split(Regex(LLAMA3)),
        "qwen2": split(Regex(QWEN2)),
        "han": split(Regex(HAN)),
        "deepseek3": sequence(
            [split(Regex(r"\p{N}{1,3}")), split(Regex("[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+")), split(Regex(DEEPSEEK))]
        ),
        "deepseek_coder": sequence(coder),
        "starcoder": sequence([digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]),
        "falcon": sequence(falcon),
        "bloom": split(Regex(BLOOM)),
    }
    for name, form in forms.items():
        t = Tokenizer(models.BPE(ignore_merges=name == "llama3"))
        own = name in ("deepseek_coder", "starcoder", "falcon")  # ByteLevel is among its steps
        t.pre_tokenizer = form if own else sequence([form, letters()])
        if name == "qwen2":
            t.normalizer = normalizers.NFC()
        trainer = trainers.BpeTrainer(
            vocab_size=700,
            special_tokens=["<|begin_of_text|>", "<|end_of_text|>"],
            initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
            show_progress=False,
        )
        t = trained(t, trainer)
        t.add_special_tokens([AddedToken("<mask>", normalized=False), AddedToken("<|im_end|>", rstrip=True)])
        level = processors.ByteLevel(trim_offsets=False)
        t.post_processor = level
        if name == "llama3":
            begin = processors.TemplateProcessing(single="<|begin_of_text|> $A", special_tokens=[("<|begin_of_text|>", 0)])
            t.post_processor = processors.Sequence([level, begin])
        yield name, t

    gemma = Tokenizer(models.BPE(unk_token="<unk>"))
    gemma.normalizer = normalizers.Replace(" ", "\u2581")
    gemma.pre_tokenizer = split("\u2581", "merged_with_next")
    yield "gemma", trained(gemma, trainers.BpeTrainer(vocab_size=400, special_tokens=["<pad>", "<unk>"], show_progress=False))


def pre_tokenized() -> Iterator[pre_tokenizers.PreTokenizer]:
    """Every behavior, and every pattern."""
    for behavior in BEHAVIORS:
        for invert in (False, True):
            for pattern in (Regex(LLAMA3), Regex("[aeiou]"), Regex("x*|e"), Regex(r"\s+"), " ", "an", "."):
                yield split(pattern, behavior, invert)
        yield pre_tokenizers.Punctuation(behavior)
        yield pre_tokenizers.Sequence(
            [pre_tokenizers.Sequence([pre_tokenizers.Digits(True)]), pre_tokenizers.Punctuation(behavior)]
        )
    yield pre_tokenizers.Digits(individual_digits=False)
    yield pre_tokenizers.Digits(individual_digits=True)
    for text in (GPT4, GPT4O, QWEN2, HAN, DEEPSEEK, BLOOM, *PATTERNS):
        yield split(Regex(text))


def splits(texts: List[str]) -> List[Dict[str, Any]]:
    made = []
    for pre in pre_tokenized():
        cases = [{"text": text, "pieces": [piece for piece, _ in pre.pre_tokenize_str(text)]} for text in texts]
        made.append({"pre_tokenizer": json.loads(pre.__getstate__()), "cases": cases})
    return made


def characters() -> str:
    blocks = [
        (0, 0xD800),
        (0xE000, 0xE010),
        (0xF900, 0x12000),
        (0x1D400, 0x1D800),
        (0x1F000, 0x1FB00),
        (0x20000, 0x20040),
        (0xE0000, 0xE01F0),
    ]
    return "".join(chr(c) for begin, end in blocks for c in range(begin, end))


def sets() -> Dict[str, Any]:
    """For each of SETS the places in the text of all characters where one of it is, as pairs of begin and end."""
    text = characters()
    found: Dict[str, Any] = {}
    for pattern in SETS:
        found[pattern], at = [], 0
        rest = split(Regex(pattern), "removed").pre_tokenize_str(text)
        for _, (begin, end) in [*rest, ("", (len(text), len(text)))]:
            if begin > at:
                found[pattern].append([at, begin])
            at = end
    return {"text": text, "found": found}


def single() -> Dict[str, Any]:
    """What normalizers make of each character, where that is something else, and what pre-tokenizers make of all in a row."""
    text = characters()
    bert = {"clean_text": False, "handle_chinese_chars": False, "strip_accents": False, "lowercase": False}
    made: Dict[str, Any] = {"text": text, "normalizers": [], "pre_tokenizers": []}
    for step in (
        *(normalizers.BertNormalizer(**{**bert, name: True}) for name in bert),
        *(normalizers.NFC(), normalizers.NFD(), normalizers.NFKC(), normalizers.NFKD(), normalizers.StripAccents()),
        *(normalizers.Lowercase(), normalizers.Nmt(), normalizers.Strip(), normalizers.ByteLevel()),
    ):
        other = {c: step.normalize_str(c) for c in text}
        made["normalizers"].append({"step": json.loads(step.__getstate__()), "made": {c: m for c, m in other.items() if m != c}})
    for pre in (pre_tokenizers.UnicodeScripts(), pre_tokenizers.Punctuation(), pre_tokenizers.BertPreTokenizer()):
        pieces = [piece for piece, _ in pre.pre_tokenize_str(text)]
        made["pre_tokenizers"].append({"step": json.loads(pre.__getstate__()), "pieces": pieces})
    return made
