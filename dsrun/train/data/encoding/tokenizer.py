"""What dsrun needs of a tokenizer: special tokens, padding, languages and identity."""

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from dsrun.models.families import family_of
from dsrun.recipe.recipe_spec import TrainSpec
from dsrun.system.process.scratch import scratch_folder
from dsrun.train.base.labels import IGNORED
from dsrun.train.base.refusals import notice_of, refusal
from dsrun.train.data.counts import RowCounts
from dsrun.train.data.encoding.chat import set_template
from dsrun.train.model.load import from_hub, one_at_a_time


def load_tokenizer(spec: TrainSpec) -> Any:
    name = spec.tokenizer or spec.model
    if name is None:
        raise refusal("tokenizer.none")
    options = {"use_fast": spec.use_fast_tokenizer, "trust_remote_code": spec.trust_remote_code}
    with one_at_a_time(spec.trust_remote_code):
        tokenizer = from_hub(AutoTokenizer, name, "tokenizer", spec, **options)
    set_template(tokenizer, spec.chat_template)
    return tokenizer


@dataclass(frozen=True)
class DocumentAffixes:
    """Special tokens around a document: those the tokenizer puts there, and an end token in any case."""

    before: tuple[int, ...]
    after: tuple[int, ...]

    def wrap(self, ids: list[int], *, starts: bool = True, ends: bool = True) -> list[int]:
        if starts and tuple(ids[: len(self.before)]) != self.before:
            ids = [*self.before, *ids]
        if ends and tuple(ids[max(0, len(ids) - len(self.after)) :]) != self.after:
            ids = [*ids, *self.after]
        return ids


def affixes_of(tokenizer: Any) -> DocumentAffixes:
    """Find the affixes by looking at what the tokenizer adds to a word."""
    plain = tokenizer("a", add_special_tokens=False)["input_ids"]
    full = tokenizer("a")["input_ids"]
    starts = (i for i in range(len(full) - len(plain) + 1) if plain and full[i : i + len(plain)] == plain)
    start = next(starts, None)
    before, after = ([], []) if start is None else (full[:start], full[start + len(plain) :])
    end = tokenizer.eos_token_id
    if end is not None and end not in after:
        after = [*after, end]
    return DocumentAffixes(tuple(before), tuple(after))


@dataclass(frozen=True)
class UnknownTokens:
    """`unknown` is the token of a tokenizer for what it does not know, None where it has none or uses it for other
    things, too (GPT-2); `special` are tokens that say nothing."""

    unknown: int | None
    special: np.ndarray

    @classmethod
    def of(cls, tokenizer: Any) -> "UnknownTokens":
        unknown = getattr(tokenizer, "unk_token_id", None)
        others = {getattr(tokenizer, f"{name}_token_id", None) for name in ("eos", "bos", "pad")}
        # SentencePiece's beginning of a word: T5 makes it and one unknown token of a Chinese sentence.
        beginning = tokenizer.convert_tokens_to_ids("▁")
        special = {*getattr(tokenizer, "all_special_ids", ()), beginning, IGNORED} - {unknown, None}
        return cls(None if unknown in others else unknown, np.array(sorted(special)))

    def count(self, side: str, rows: Sequence[Sequence[int]], counts: RowCounts) -> None:
        if self.unknown is not None and rows:
            ids = np.concatenate([np.asarray(row, np.int64) for row in rows])
            words = ids[~np.isin(ids, self.special)]
            counts.add({"words": {side: [len(words), int((words == self.unknown).sum())]}})


# What a class may override on the way from text to ids.
_ENCODING = ("__call__", "_encode_plus", "set_truncation_and_padding", "_convert_encoding")


def plain_backend(tokenizer: Any) -> Any:
    """The Rust tokenizer, for texts without special tokens and limit: `encode_batch_fast` gives the same ids without
    the offsets of each token. None where the tokenizer is not in Rust or does something of its own."""
    kind = type(tokenizer)
    if not all(getattr(kind, name, None) is getattr(PreTrainedTokenizerFast, name, kind) for name in _ENCODING):
        return None
    backend = tokenizer.backend_tokenizer
    # As `_encode_plus` sets them before each call.
    backend.no_truncation()
    backend.no_padding()
    backend.encode_special_tokens = tokenizer.split_special_tokens
    return backend


def pad_with_end(tokenizer: Any, task: str) -> str | None:
    """Give a causal model's tokenizer without padding token its end token for it; returns a notice. Batches mark
    padding by position, so the true end tokens are learned all the same."""
    if tokenizer.pad_token_id is not None:
        return None
    if task == "seq2seq":
        raise refusal("tokenizer.no_padding")
    if tokenizer.eos_token is None:
        return "the tokenizer has neither padding nor end token: nothing marks where a document ends"
    tokenizer.pad_token = tokenizer.eos_token
    return f"the tokenizer has no padding token: {tokenizer.eos_token} pads, outside the loss"


def prefix_notice(spec: TrainSpec, model_type: str) -> str | None:
    """The original T5 knows its tasks by a prefix; mT5, and what starts from scratch, does not."""
    own = spec.from_scratch or (spec.model or "").startswith("demo-")
    is_needed = family_of(model_type).task_prefix and spec.source_prefix is None and not own
    return notice_of("data.t5_prefix") if is_needed else None


def tokenizer_identity(tokenizer: Any) -> str:
    """A digest of everything that bears on the ids: vocabulary and rules, special tokens, template, languages."""
    digest = hashlib.sha256()
    own = {
        "class": type(tokenizer).__name__,
        "special": {name: str(token) for name, token in tokenizer.special_tokens_map.items()},
        "template": getattr(tokenizer, "chat_template", None),
        "languages": [getattr(tokenizer, name, None) for name in ("src_lang", "tgt_lang")],
        "limit": tokenizer.model_max_length,
    }
    digest.update(json.dumps(own, sort_keys=True, default=str).encode())
    if tokenizer.is_fast:
        rules = json.loads(tokenizer.backend_tokenizer.to_str())
        # Left over from the last call, and set anew by every next one.
        rules.pop("truncation", None)
        rules.pop("padding", None)
        digest.update(json.dumps(rules, sort_keys=True).encode())
    else:
        # The parts of a slow tokenizer are in its files alone (Marian has two SentencePiece models).
        with scratch_folder("dsrun-tokenizer-") as folder:
            for name in sorted(tokenizer.save_vocabulary(folder)):
                digest.update(Path(name).read_bytes())
        digest.update(json.dumps(tokenizer.get_added_vocab(), sort_keys=True).encode())
    return digest.hexdigest()


def set_languages(tokenizer: Any, source: str | None, target: str | None) -> None:
    """Set the languages of a multilingual tokenizer (mBART, NLLB, M2M100 …): its default is English for source and
    target, which trains a wrong model silently."""
    if not is_multilingual(tokenizer):
        return
    kind, codes = type(tokenizer).__name__, _codes(tokenizer) or ["CODE"]
    for language, flag in ((source, "--source-lang"), (target, "--target-lang")):
        if not language:
            raise refusal("tokenizer.no_language", kind=kind, flag=flag, first=codes[0], known=", ".join(codes[:8]))
        if not _knows(tokenizer, language):
            close = [code for code in codes if code[:2] == language[:2]] or codes
            known = ", ".join(close[:8])
            raise refusal("tokenizer.language", flag=flag, language=language, kind=kind, known=known)
    tokenizer.src_lang = source
    tokenizer.tgt_lang = target


def is_multilingual(tokenizer: Any) -> bool:
    """Whether source and target carry language tokens. FSMT's tokenizer has the attributes too, but no codes."""
    return hasattr(type(tokenizer), "src_lang") and hasattr(tokenizer, "tgt_lang")


def _codes(tokenizer: Any) -> list[str]:
    codes = getattr(tokenizer, "lang_code_to_id", None)
    if codes:
        return list(codes)
    # NLLB keeps its codes among the special tokens only.
    return [token for token in getattr(tokenizer, "all_special_tokens", []) if "_" in token.strip("_")]


def _knows(tokenizer: Any, language: str) -> bool:
    codes = _codes(tokenizer)
    if codes:
        return language in codes
    unknown = getattr(tokenizer, "unk_token_id", None)
    return tokenizer.convert_tokens_to_ids(language) not in (None, unknown)
