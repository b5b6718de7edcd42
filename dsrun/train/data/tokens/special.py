"""Padding token, languages, prefix and identity of a tokenizer."""

from __future__ import annotations

import hashlib
import json
import tempfile
from pathlib import Path
from typing import Any

from dsrun.errors import UsageError
from dsrun.model_families import family_of
from dsrun.recipe.spec import TrainSpec


def pad_with_end(tokenizer: Any, task: str) -> str | None:
    """Give a causal model's tokenizer without padding token its end token for it; returns a notice.

    The batches mark padding by position, so the true end tokens are learned all the same.

    Raises:
        UsageError: an encoder-decoder's tokenizer has none.
    """
    if tokenizer.pad_token_id is not None:
        return None
    if task == "seq2seq":
        raise UsageError(
            "the tokenizer has no padding token, without which an encoder-decoder model cannot batch",
            fix="give --tokenizer one with a pad_token",
        )
    if tokenizer.eos_token is None:
        return "the tokenizer has neither padding nor end token: nothing marks where a document ends"
    tokenizer.pad_token = tokenizer.eos_token
    return f"the tokenizer has no padding token: {tokenizer.eos_token} pads, outside the loss"


def prefix_notice(spec: TrainSpec, model_type: str) -> str | None:
    """The original T5 knows its tasks by a prefix; mT5, and what starts from scratch, does not."""
    own = spec.from_scratch or (spec.model or "").startswith("demo-")
    if not family_of(model_type).task_prefix or spec.source_prefix is not None or own:
        return None
    return (
        "T5 was trained with a prefix before every source and none is given "
        "(--source-prefix 'translate English to German: ' or 'summarize: ')"
    )


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
        # These two are left over from the last call and set anew by every next one.
        rules.pop("truncation", None)
        rules.pop("padding", None)
        digest.update(json.dumps(rules, sort_keys=True).encode())
    else:
        # What a slow tokenizer consists of only its files tell (Marian has two SentencePiece models).
        with tempfile.TemporaryDirectory() as folder:
            for name in sorted(tokenizer.save_vocabulary(folder)):
                digest.update(Path(name).read_bytes())
        digest.update(json.dumps(tokenizer.get_added_vocab(), sort_keys=True).encode())
    return digest.hexdigest()


def library_versions() -> dict[str, str]:
    """The versions of what tokenises: an upgrade tokenises once more."""
    import tokenizers
    import transformers

    return {"tokenizers": tokenizers.__version__, "transformers": transformers.__version__}


def set_languages(tokenizer: Any, source: str | None, target: str | None) -> None:
    """Tell a multilingual tokenizer (mBART, NLLB, M2M100 …) its languages; others are left alone.

    Such a tokenizer writes a language token into every source and target; its default is English for both, which trains
    a wrong model in silence.

    Raises:
        UsageError: no language was given, or the tokenizer does not know it.
    """
    if not is_multilingual(tokenizer):
        return
    for language, flag in ((source, "--source-lang"), (target, "--target-lang")):
        if not language:
            raise UsageError(
                f"{type(tokenizer).__name__} writes a language token into every sample and needs {flag}",
                fix=f"{flag} {_some_codes(tokenizer)[0]} (known: {', '.join(_some_codes(tokenizer)[:8])} …)",
            )
        if not _knows(tokenizer, language):
            close = [code for code in _codes(tokenizer) if code[:2] == language[:2]] or _some_codes(tokenizer)
            raise UsageError(
                f"{flag} {language}: {type(tokenizer).__name__} does not know this language",
                fix=f"known: {', '.join(close[:8])}",
            )
    tokenizer.src_lang = source
    tokenizer.tgt_lang = target


def is_multilingual(tokenizer: Any) -> bool:
    """Whether source and target carry language tokens.

    FSMT's tokenizer has the attributes too, but for one fixed pair that its vocabulary decides, and no codes.
    """
    return hasattr(type(tokenizer), "src_lang") and hasattr(tokenizer, "tgt_lang")


def _codes(tokenizer: Any) -> list[str]:
    codes = getattr(tokenizer, "lang_code_to_id", None)
    if codes:
        return list(codes)
    # NLLB keeps its codes among the special tokens only.
    return [token for token in getattr(tokenizer, "all_special_tokens", []) if "_" in token.strip("_")]


def _some_codes(tokenizer: Any) -> list[str]:
    return _codes(tokenizer) or ["CODE"]


def _knows(tokenizer: Any, language: str) -> bool:
    codes = _codes(tokenizer)
    if codes:
        return language in codes
    unknown = getattr(tokenizer, "unk_token_id", None)
    return tokenizer.convert_tokens_to_ids(language) not in (None, unknown)
