"""Trains tokenizers of every kind with Hugging Face's library, and writes what it makes of unpleasant texts.

    python compare.py FOLDER

FOLDER gets NAME.json and NAME.want, [{"text", "ids", "types"}], for each (steps.py says what may be missing); splits/pieces.json,
what pre-tokenizers alone make of texts; splits/sets.json, the characters that classes of regular expressions stand for; and
splits/single.json, what steps make of each character. Needs tokenizers and sentencepiece.
"""

import io
import json
import random
import sys
from pathlib import Path
from typing import Dict, Iterator, List, Tuple

import sentencepiece
from families import regexes, sets, single, splits
from sentencepiece import sentencepiece_model_pb2
from steps import cases as made_of
from steps import everything
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

WORDS = [
    *("the", "man", "is", "eating", "food", "and", "a", "piece", "of", "bread", "while", "girl", "carries", "baby"),
    *("her", "over", "there", "it's", "don't"),
    *("3.14", "1234", "$5", "hello,", "world!", "snake_case", "Caf\u00e9", "na\u00efve", "\u00c5ngstr\u00f6m", "\u0130stanbul"),
    *("Stra\u00dfe", "\u041c\u043e\u0441\u043a\u0432\u0430", "\u05e9\u05dc\u05d5\u05dd", "\u4f60\u597d", "\u4e16\u754c"),
    *("\u0627\u0644\u0633\u0644\u0627\u0645", "\u3053\u3093\u306b\u3061\u306f", "\ud55c\uad6d\uc5b4", "e\u0301", "\u2460"),
    *("\u0928\u092e\u0938\u094d\u0924\u0947", "\U0001f600", "\U0001f469\u200d\U0001f680", "\ufb01ne", "\u00bd"),
]
PIECES = [
    *WORDS,
    *"aAzZ09.,;!?'\"-_/\\()[]{}<>@#%&*+=~^|`",
    *(
        " ",
        "  ",
        "    ",
        "\t",
        "\n",
        "\r\n",
        "\u00a0",
        "\u3000",
        "\u2009",
        "\u200b",
        "\u2028",
        "\u0085",
        "\x0b",
        "\x0c",
        "\u2581",
        "\u2581\u2581",
    ),
    *(
        "\x00",
        "\x01",
        "\x1b",
        "\x7f",
        "\u0080",
        "\u00ad",
        "\ufeff",
        "\ufffd",
        "\u202e",
        "\ue000",
        "\u0378",
        "\U000e0041",
        "\U0010ffff",
    ),
    *(
        "e\u0301",
        "a\u0300\u0301\u0302",
        "\u0301",
        "\u0903",
        "\u20dd",
        "\u0915\u094d\u0937",
        "\u1100\u1161\u11a8",
        "\uac01",
        "\u0e33",
        "\u0130",
        "\u03a3",
        "\u1e9e",
    ),
    *(
        "\U0001f1e8\U0001f1ed",
        "\U0001f44d\U0001f3fd",
        "\u2764\ufe0f",
        "1\ufe0f\u20e3",
        "\U0001f468\u200d\U0001f469\u200d\U0001f467",
    ),
    *(
        "\uff21\uff22",
        "\u2126",
        "\u00b2",
        "\u2167",
        "\u24b6",
        "\ufdfa",
        "\u337f",
        "``",
        "''",
        "\U00020000",
        "\uf900",
        "\U0001d400",
    ),
    *(
        "<s>",
        "</s>",
        "<pad>",
        "<mask>",
        "[MASK]",
        "[CLS]",
        "<extra_id_0>",
        "<unk>",
        "[UNK]",
        "New",
        "new token",
        "NEW",
        " foodeating ",
    ),
]


# Blanks, ends of lines, contractions and numbers, as those patterns mind them.
MORE = [
    *("a\r\nb\r\n\r\n  c", "\n\n\n", "  \n  x", "a  b   c    ", "\t\tx", "x\u00a0\u00a0y", "a \r b \n", "line\n", "\nline"),
    *("I'm you're WE'LL they'Ve it's IT'S don't 'tis '\u017f 'x", "12345678"),
    *("1,234.56 \u0661\u0662\u0663\u0664 \u00b2\u00b3 \u2167", "x=1;y+=2\n"),
    *("HTTPServer camelCase XMLHttp \u01c5x", "hello!!! ... --- \u2026\u3002"),
    *("\U0001f600\U0001f600 ok\U0001f44d\U0001f3fd", "a/b//c/\n/d", "{a}{b}"),
    *("\u4f60\u597d world \u4e16\u754c123", "\u3053\u3093 \u30ab\u30bf abc", "axxb", "xx", "the then an than"),
    *("Kelvin \u212a \u00df SS", "()[]|.,"),
    *("if (x) {\n\treturn y;\n}\n\n", "\x1b[0m \x07\x08\x0b\x0c", "e\u0301\u0301 n\u0303", "<|im_end|>  x <mask> y"),
    *("\u2581\u2581a\u2581"),
]


def texts() -> List[str]:
    """Fixed ones, and some by chance, which is the same each time."""
    rng = random.Random(7)
    made = ["", " ", "a", " a ", "A man is eating food.", "x" * 120 + " y", "x" * 20000, "ab " * 5000, "\u4f60\u597d" * 3000]
    made += [
        "e" + "\u0301" * 29 + "x",
        "\U0001f600" * 500,
        "\u2581",
        " \u2581 ",
        "<mask>",
        " <mask> ",
        "a<mask>b",
        "a <mask> b",
        "  <mask>  <mask>",
    ]
    made += PIECES + MORE
    made += ["".join(rng.choices(PIECES, k=rng.randint(2, 12))) for _ in range(400)]
    made += [" ".join(rng.choices(PIECES, k=rng.randint(2, 20))) for _ in range(200)]
    made.append("".join(rng.choices(PIECES, k=8000)))
    return made


def corpus() -> Iterator[str]:
    rng = random.Random(3)
    for _ in range(300):
        yield " ".join(rng.choices(WORDS, k=12))


def charsmap(rule: str) -> bytes:
    """SentencePiece's normalizer, which it writes into every model."""
    out = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(list(corpus())),
        model_writer=out,
        vocab_size=400,
        hard_vocab_limit=False,
        normalization_rule_name=rule,
        minloglevel=2,
    )
    proto = sentencepiece_model_pb2.ModelProto()
    proto.ParseFromString(out.getvalue())
    return bytes(proto.normalizer_spec.precompiled_charsmap)


def trained(t: Tokenizer, trainer: trainers.Trainer) -> Tokenizer:
    t.train_from_iterator(corpus(), trainer)
    return t


def unigram(special: Tuple[str, ...] = ("<pad>", "</s>", "<unk>", "<s>")) -> trainers.Trainer:
    return trainers.UnigramTrainer(vocab_size=400, special_tokens=list(special), unk_token="<unk>", show_progress=False)


def blanks(scheme: str = "always", split: bool = True) -> pre_tokenizers.PreTokenizer:
    return pre_tokenizers.Metaspace(prepend_scheme=scheme, split=split)


def unigrams() -> Iterator[Tuple[str, Tokenizer]]:
    """As T5, XLM-R, ALBERT, DeBERTa and Llama do it, each with what is its own."""
    nfkc, folded = normalizers.Precompiled(charsmap("nmt_nfkc")), normalizers.Precompiled(charsmap("nmt_nfkc_cf"))

    t5 = Tokenizer(models.Unigram())
    t5.normalizer, t5.pre_tokenizer = nfkc, pre_tokenizers.Sequence([pre_tokenizers.WhitespaceSplit(), blanks()])
    t5 = trained(t5, unigram())
    t5.add_special_tokens([AddedToken("<extra_id_0>"), AddedToken("<extra_id_1>", lstrip=True, rstrip=True)])
    t5.post_processor = processors.TemplateProcessing(single="$A </s>", special_tokens=[("</s>", 1)])
    yield "t5", t5

    xlmr = Tokenizer(models.Unigram())
    xlmr.normalizer = normalizers.Sequence([nfkc, normalizers.Replace(Regex(" {2,}"), " ")])
    xlmr.pre_tokenizer = blanks()
    xlmr = trained(xlmr, unigram(("<s>", "<pad>", "</s>", "<unk>")))
    xlmr.add_special_tokens([AddedToken("<mask>", lstrip=True)])
    xlmr.add_tokens(
        [AddedToken("New", single_word=True), AddedToken("new token", normalized=True), AddedToken("NEW", normalized=False)]
    )
    xlmr.post_processor = processors.TemplateProcessing(single="<s> $A </s>", special_tokens=[("<s>", 0), ("</s>", 2)])
    yield "xlmr", xlmr

    albert = Tokenizer(models.Unigram())
    albert.normalizer = normalizers.Sequence(
        [
            normalizers.Replace("``", '"'),
            normalizers.Replace("''", '"'),
            normalizers.NFKD(),
            normalizers.StripAccents(),
            normalizers.Lowercase(),
            nfkc,
        ]
    )
    albert.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.WhitespaceSplit(), blanks()])
    albert = trained(albert, unigram(("<pad>", "<unk>", "[CLS]", "[SEP]", "[MASK]")))
    yield "albert", albert

    deberta = Tokenizer(models.Unigram())
    deberta.normalizer = normalizers.Sequence([normalizers.Strip(), folded, normalizers.Replace(Regex(" {2,}"), " ")])
    deberta.pre_tokenizer = blanks()
    yield "deberta", trained(deberta, unigram())

    first = Tokenizer(models.Unigram())
    first.normalizer, first.pre_tokenizer = (
        normalizers.Sequence([normalizers.Nmt(), normalizers.Strip(), normalizers.NFC()]),
        blanks("first", False),
    )
    yield "first", trained(first, unigram())

    never = Tokenizer(models.Unigram())
    never.normalizer, never.pre_tokenizer = normalizers.NFKC(), blanks("never")
    yield "never", trained(never, unigram())

    vocabulary = json.loads(t5.to_str())["model"]["vocab"]
    fallback = models.Unigram([*map(tuple, vocabulary), *((f"<0x{b:02X}>", -20.0) for b in range(256))], 2, True)
    bytewise = Tokenizer(fallback)
    bytewise.normalizer, bytewise.pre_tokenizer, bytewise.decoder = nfkc, blanks("first"), decoders.ByteFallback()
    bytewise.add_special_tokens(["<s>", "</s>"])
    yield "bytes", bytewise


def bytepairs() -> Iterator[Tuple[str, Tokenizer]]:
    special = ["<s>", "<pad>", "</s>", "<unk>"]
    for name, prefix in (("gpt2", False), ("roberta", True)):
        t = Tokenizer(models.BPE())
        t.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=prefix)
        alphabet = pre_tokenizers.ByteLevel.alphabet()
        trainer = trainers.BpeTrainer(vocab_size=500, special_tokens=special, initial_alphabet=alphabet, show_progress=False)
        t = trained(t, trainer)
        t.add_special_tokens([AddedToken("<mask>", lstrip=True)])
        t.post_processor = processors.RobertaProcessing(("</s>", 2), ("<s>", 0), add_prefix_space=prefix)
        yield name, t

    clip = Tokenizer(models.BPE(unk_token="<unk>", end_of_word_suffix="</w>"))
    clip.normalizer = normalizers.Sequence([normalizers.NFC(), normalizers.Lowercase()])
    clip.pre_tokenizer = pre_tokenizers.Whitespace()
    yield (
        "clip",
        trained(
            clip, trainers.BpeTrainer(vocab_size=400, special_tokens=special, end_of_word_suffix="</w>", show_progress=False)
        ),
    )

    for fused in (False, True):
        t = Tokenizer(models.BPE(unk_token="<unk>", continuing_subword_prefix="##", fuse_unk=fused))
        t.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
        trainer = trainers.BpeTrainer(vocab_size=400, special_tokens=special, continuing_subword_prefix="##", show_progress=False)
        yield f"prefix_{fused}", trained(t, trainer)

    whole = Tokenizer(models.BPE(unk_token="<unk>", ignore_merges=True))
    whole.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    whole = trained(whole, trainers.BpeTrainer(vocab_size=300, special_tokens=special, show_progress=False))
    model = json.loads(whole.to_str())["model"]
    model["vocab"]["foodeating"] = len(model["vocab"])
    again = Tokenizer(models.BPE(model["vocab"], [tuple(m) for m in model["merges"]], unk_token="<unk>", ignore_merges=True))
    again.pre_tokenizer = whole.pre_tokenizer
    yield "whole", again

    llama = Tokenizer(models.BPE(unk_token="<unk>"))
    llama.normalizer = normalizers.Sequence([normalizers.Prepend("\u2581"), normalizers.Replace(" ", "\u2581")])
    llama.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="always")
    llama = trained(llama, trainers.BpeTrainer(vocab_size=400, special_tokens=special, show_progress=False))
    model = json.loads(llama.to_str())["model"]
    vocabulary: Dict[str, int] = model["vocab"]
    for b in range(256):
        vocabulary.setdefault(f"<0x{b:02X}>", len(vocabulary))
    merges = [tuple(m) for m in model["merges"]]
    bytewise = Tokenizer(models.BPE(vocabulary, merges, unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    bytewise.normalizer = llama.normalizer
    bytewise.add_special_tokens(special)
    yield "llama", bytewise


def words() -> Iterator[Tuple[str, Tokenizer]]:
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    for name, normalizer in (
        ("uncased", normalizers.BertNormalizer()),
        ("cased", normalizers.BertNormalizer(lowercase=False)),
        ("accents", normalizers.BertNormalizer(clean_text=False, handle_chinese_chars=False, strip_accents=False)),
    ):
        t = Tokenizer(models.WordPiece(unk_token="[UNK]"))
        t.normalizer, t.pre_tokenizer = normalizer, pre_tokenizers.BertPreTokenizer()
        t = trained(t, trainers.WordPieceTrainer(vocab_size=400, special_tokens=special, show_progress=False))
        t.post_processor = processors.BertProcessing(("[SEP]", 3), ("[CLS]", 2))
        yield name, t
    for name, pre in (("wordlevel", pre_tokenizers.Whitespace()), ("wordlevel_split", pre_tokenizers.WhitespaceSplit())):
        t = Tokenizer(models.WordLevel(unk_token="[UNK]"))
        t.normalizer, t.pre_tokenizer = normalizers.Lowercase(), pre
        yield name, trained(t, trainers.WordLevelTrainer(vocab_size=60, special_tokens=special, show_progress=False))


def main() -> None:
    """The library says on stderr which texts are more than it can bear."""
    out = Path(sys.argv[1])
    unpleasant = texts()
    for kind in (unigrams(), bytepairs(), words(), regexes(trained)):
        for name, t in kind:
            t.save(str(out / f"{name}.json"), pretty=False)
            t = Tokenizer.from_file(str(out / f"{name}.json"))
            cases = [{"text": text, "ids": e.ids} for text, e in zip(unpleasant, t.encode_batch(unpleasant))]
            (out / f"{name}.want").write_text(json.dumps(cases))
    short = [text for text in unpleasant if len(text) < 60]
    for i, file in enumerate(everything(100)):
        made = made_of(file, short[::4] + MORE)
        if made:
            (out / f"step{i:03}.json").write_text(json.dumps(file))
            (out / f"step{i:03}.want").write_text(json.dumps(made))
    (out / "splits").mkdir()
    (out / "splits/pieces.json").write_text(json.dumps(splits(short[:180] + short[180::6] + MORE)))
    (out / "splits/sets.json").write_text(json.dumps(sets()))
    (out / "splits/single.json").write_text(json.dumps(single()))


if __name__ == "__main__":
    main()
