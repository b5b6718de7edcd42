"""What dsrun needs of a tokenizer: special tokens, padding, languages, identity, and chat templates."""

from __future__ import annotations

import hashlib
import json
import re
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dsrun.errors import UsageError
from dsrun.model_families import family_of
from dsrun.recipe.spec import TrainSpec

_GENERATION = re.compile(r"\{%-?\s*generation\s*-?%\}")


@dataclass(frozen=True)
class Affixes:
    """Special tokens around a document: those the tokenizer puts there, and an end token in any case."""

    before: tuple[int, ...]
    after: tuple[int, ...]

    def wrap(self, ids: list[int], *, starts: bool = True, ends: bool = True) -> list[int]:
        if starts and tuple(ids[: len(self.before)]) != self.before:
            ids = [*self.before, *ids]
        if ends and tuple(ids[max(0, len(ids) - len(self.after)) :]) != self.after:
            ids = [*ids, *self.after]
        return ids


def affixes_of(tokenizer: Any) -> Affixes:
    """Find the affixes by looking at what the tokenizer adds to a word."""
    plain = tokenizer("a", add_special_tokens=False)["input_ids"]
    full = tokenizer("a")["input_ids"]
    starts = (i for i in range(len(full) - len(plain) + 1) if plain and full[i : i + len(plain)] == plain)
    start = next(starts, None)
    before, after = ([], []) if start is None else (full[:start], full[start + len(plain) :])
    end = tokenizer.eos_token_id
    if end is not None and end not in after:
        after = [*after, end]
    return Affixes(tuple(before), tuple(after))


def check_template(tokenizer: Any, where: str) -> None:
    if not getattr(tokenizer, "chat_template", None):
        raise UsageError(
            f"{where} holds conversations, but the tokenizer has no chat template",
            fix="--tokenizer of an instruction-tuned model, or a chat_template.jinja in the model's folder",
        )


def encode_chat(
    tokenizer: Any, messages: list[dict[str, Any]], tools: list[Any] | None, where: str
) -> tuple[list[int], list[bool]]:
    """Token ids of a conversation and, for each, whether the assistant wrote it: by the template's own `{% generation
    %}` marks, else by what rendering one message more adds to the text."""
    if tokenizer.is_fast and _GENERATION.search(tokenizer.get_chat_template(tools=tools)):
        found = _render(
            tokenizer, messages, tools, where, tokenize=True, return_dict=True, return_assistant_tokens_mask=True
        )
        return list(found["input_ids"]), [bool(mark) for mark in found["assistant_masks"]]
    full = _render(tokenizer, messages, tools, where, tokenize=False)
    spans = _assistant_spans(tokenizer, messages, tools, full, where)
    if tokenizer.is_fast:
        return _mark_by_offsets(tokenizer, full, spans)
    return _mark_by_prefixes(tokenizer, full, spans, where)


def _render(tokenizer: Any, messages: list[dict[str, Any]], tools: list[Any] | None, where: str, **how: Any) -> Any:
    from jinja2 import TemplateError

    try:
        return tokenizer.apply_chat_template(messages, tools=tools, **how)
    except TemplateError as error:
        raise UsageError(f"{where}: the chat template refuses these messages: {error}") from error


def _assistant_spans(
    tokenizer: Any, messages: list[dict[str, Any]], tools: list[Any] | None, full: str, where: str
) -> list[tuple[int, int]]:
    """[start, end) of what the assistant wrote, in characters of the full rendering, end of turn included."""
    spans = []
    for i, message in enumerate(messages):
        if message["role"] != "assistant":
            continue
        after = full if i + 1 == len(messages) else _render(tokenizer, messages[: i + 1], tools, where, tokenize=False)
        if i == 0:
            # Many templates cannot render an empty conversation.
            start = max(0, after.find(message["content"].strip()))
        else:
            before = _render(tokenizer, messages[:i], tools, where, tokenize=False, add_generation_prompt=True)
            if not after.startswith(before):
                # A template without a generation prompt of its own kind, or one that opens with the answer.
                before = _render(tokenizer, messages[:i], tools, where, tokenize=False)
            start = len(before)
            if not after.startswith(before):
                _not_a_prefix(where)
        if not full.startswith(after):
            _not_a_prefix(where)
        spans.append((start, len(after)))
    return spans


def _not_a_prefix(where: str) -> None:
    raise UsageError(
        f"{where}: the chat template changes earlier messages when later ones come, so the assistant's "
        "tokens cannot be told apart",
        fix="put {% generation %} … {% endgeneration %} around the assistant's part of the template",
    )


def _mark_by_offsets(tokenizer: Any, full: str, spans: list[tuple[int, int]]) -> tuple[list[int], list[bool]]:
    found = tokenizer(full, add_special_tokens=False, return_offsets_mapping=True, verbose=False)
    ids, offsets = found["input_ids"], found["offset_mapping"]
    marks = [False] * len(ids)
    control = set(tokenizer.all_special_ids) | set(tokenizer.get_added_vocab().values())
    for start, end in spans:
        inside = [k for k, (left, right) in enumerate(offsets) if start <= left < end and right > left]
        # ChatML closes a turn with a control token and a line break; generation stops before the line break.
        while len(inside) > 1 and not full[slice(*offsets[inside[-1]])].strip() and ids[inside[-1]] not in control:
            if not any(ids[k] in control for k in inside):
                break
            inside.pop()
        for k in inside:
            marks[k] = True
    return ids, marks


def _mark_by_prefixes(
    tokenizer: Any, full: str, spans: list[tuple[int, int]], where: str
) -> tuple[list[int], list[bool]]:
    """For tokenizers without offsets: a span begins and ends where the tokens of its prefix end."""
    ids = tokenizer(full, add_special_tokens=False, verbose=False)["input_ids"]
    marks = [False] * len(ids)
    for start, end in spans:
        edges = []
        for edge in (start, end):
            prefix = tokenizer(full[:edge], add_special_tokens=False, verbose=False)["input_ids"]
            if ids[: len(prefix)] != prefix:
                raise UsageError(
                    f"{where}: this slow tokenizer joins the assistant's text with the preceding text",
                    fix="use a fast tokenizer: --use-fast-tokenizer true",
                )
            edges.append(len(prefix))
        marks[edges[0] : edges[1]] = [True] * (edges[1] - edges[0])
    return ids, marks


def pad_with_end(tokenizer: Any, task: str) -> str | None:
    """Give a causal model's tokenizer without padding token its end token for it; returns a notice. Batches mark
    padding by position, so the true end tokens are learned all the same."""
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
        # Left over from the last call, and set anew by every next one.
        rules.pop("truncation", None)
        rules.pop("padding", None)
        digest.update(json.dumps(rules, sort_keys=True).encode())
    else:
        # The parts of a slow tokenizer are in its files alone (Marian has two SentencePiece models).
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
    """Set the languages of a multilingual tokenizer (mBART, NLLB, M2M100 …): its default is English for source and
    target, which trains a wrong model silently."""
    if not is_multilingual(tokenizer):
        return
    codes = _codes(tokenizer) or ["CODE"]
    for language, flag in ((source, "--source-lang"), (target, "--target-lang")):
        if not language:
            raise UsageError(
                f"{type(tokenizer).__name__} writes a language token into every sample and needs {flag}",
                fix=f"{flag} {codes[0]} (known: {', '.join(codes[:8])} …)",
            )
        if not _knows(tokenizer, language):
            close = [code for code in codes if code[:2] == language[:2]] or codes
            raise UsageError(
                f"{flag} {language}: {type(tokenizer).__name__} does not know this language",
                fix=f"known: {', '.join(close[:8])}",
            )
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
