"""The files of a demo's model folder: the shipped ones, and the vocabulary that is made of the demo's own texts."""

import json
from collections.abc import Iterable
from typing import Any, Final

from dsrun.demo.corpus import LIMIT, english, romanian
from dsrun.demo.models import DEMO_LLAMA, FOLDER, model_config
from dsrun.errors import MissingError

T5_SPECIAL: Final = ("<pad>", "</s>", "<unk>")
LLAMA_SPECIAL: Final = ("<|pad|>", "<|begin|>", "<|end|>", "<|system|>", "<|user|>", "<|assistant|>")
# Sentences a user may put before a phrase with --source-prefix, in the manner of the T5 paper.
_PREFIXES: Final = ("translate english to romanian:", "translate romanian to english:")


def model_files(name: str, texts: Iterable[str]) -> dict[str, str]:
    """The files of a demo's model folder by name; demo-llama's tokenizer is trained on `texts`.

    Raises MissingError for demo-llama without the package `tokenizers`."""
    files = {file.name: file.read_text(encoding="utf-8") for file in (FOLDER / name).iterdir()}
    if name == DEMO_LLAMA:
        return {**files, "tokenizer.json": _byte_level_bpe(texts, model_config(name)["vocab_size"])}
    tokenizer = json.loads(files["tokenizer.json"])
    tokenizer["model"]["vocab"] = t5_vocabulary()
    return {**files, "tokenizer.json": json.dumps(tokenizer, ensure_ascii=False, indent=2) + "\n"}


def t5_words(phrase: str) -> list[str]:
    """Cut a phrase into the demo-t5 tokens: words with ``▁`` in front, and ``-nine`` as a token of its own."""
    words: list[str] = []
    for word in phrase.split():
        head, *tail = word.split("-")
        words += [f"▁{head}", *(f"-{part}" for part in tail)]
    return words


def t5_vocabulary() -> dict[str, int]:
    """Token -> id for every number phrase of both languages and for the T5 prefixes.

    Numbers below a thousand and whole thousands use every word that any phrase up to 999_999 uses."""
    vocabulary = {token: i for i, token in enumerate(T5_SPECIAL)}
    numbers = [*range(1000), *range(1000, LIMIT, 1000)]
    phrases = [spell(n) for spell in (english, romanian) for n in numbers]
    for phrase in [*phrases, *_PREFIXES]:
        for word in t5_words(phrase):
            vocabulary.setdefault(word, len(vocabulary))
    return vocabulary


def _byte_level_bpe(texts: Iterable[str], size: int) -> str:
    """The tokenizer.json of a byte-level BPE of `size` tokens, trained on `texts`."""
    try:
        from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers
    except ImportError as error:
        raise MissingError("demo-llama needs the package tokenizers", fix="pip install 'dsrun[train]'") from error
    tokenizer: Any = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=size,
        special_tokens=list(LLAMA_SPECIAL),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    begin = LLAMA_SPECIAL.index("<|begin|>")
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<|begin|> $A", pair="<|begin|> $A <|begin|> $B:1", special_tokens=[("<|begin|>", begin)]
    )
    return str(tokenizer.to_str(pretty=True))
