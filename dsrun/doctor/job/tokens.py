"""The tokenizer of a local model against the model: its padding token, and tokens beyond the embedding."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from dsrun.doctor.machine_facts import DoctorTarget, MachineFacts
from dsrun.errors import DsrunError
from dsrun.findings.conditions import findings_where
from dsrun.findings.finding import Finding
from dsrun.findings.texts import text_of
from dsrun.hub.modelscope_cache import stored_name
from dsrun.messages import joined
from dsrun.models.folder import cached_snapshot, find, hub_cache
from dsrun.system.files import read_object

LARGEST = 64 * 2**20
"""Bytes of tokenizer.json; the largest on the Hub, with 260,000 tokens, have 35 MiB."""


def look(machine: MachineFacts, target: DoctorTarget) -> Iterator[Finding]:
    """What ends in a ValueError about padding, or in an index out of range on the GPU."""
    spec = target.recipe.spec if target.recipe else None
    if spec is None or not spec.model:
        return
    name = stored_name(spec.tokenizer or spec.model, spec, machine.environ)
    path = Path(name).expanduser()
    folder = path if path.is_dir() else cached_snapshot(name, hub_cache(machine.environ))
    try:
        config = find(stored_name(spec.model, spec, machine.environ), machine.environ).config
    except DsrunError:
        return
    if folder is None:
        return
    settings = read_object(folder / "tokenizer_config.json")
    settings = {**read_object(folder / "special_tokens_map.json"), **{k: v for k, v in settings.items() if v}}
    if not settings:
        return
    largest = _largest_id(folder)
    rows = _rows(config)
    pad, end = (_text(settings.get(name)) for name in ("pad_token", "eos_token"))
    names = {"pad": pad, "end": end, "is_seq2seq": config.get("is_encoder_decoder"), "largest": largest, "rows": rows}
    is_beyond = largest is not None and rows is not None and largest >= rows
    found = list(findings_where(__file__, "tokens", is_beyond=is_beyond, lora=spec.lora is not None, **names))
    yield from found or [Finding(level="info", code="tokenizer", message=_summary(largest, rows, pad, end))]


def _summary(largest: int | None, rows: int | None, pad: str, end: str) -> str:
    parts = [
        *([text_of("tokenizer.tokens", tokens=largest + 1)] if largest is not None else []),
        *([text_of("tokenizer.rows", rows=rows)] if rows else []),
        text_of("tokenizer.pads" if pad else "tokenizer.end_pads", token=pad or end),
    ]
    return joined(", ", parts)


def _text(token: Any) -> str:
    """A special token, which is written as text or as an object with its content."""
    return str(token.get("content", "")) if isinstance(token, Mapping) else str(token or "")


def _rows(config: Mapping[str, Any]) -> int | None:
    text = config.get("text_config")
    for each in (text if isinstance(text, Mapping) else {}, config):
        if isinstance(each.get("vocab_size"), int):
            return int(each["vocab_size"])
    return None


def _largest_id(folder: Path) -> int | None:
    """The largest token id in tokenizer.json; None without that file."""
    file = folder / "tokenizer.json"
    try:
        if file.stat().st_size > LARGEST:
            return None
    except OSError:
        return None
    found = read_object(file)
    model = found.get("model")
    vocabulary = model.get("vocab") if isinstance(model, Mapping) else None
    numbers: list[int] = []
    if isinstance(vocabulary, Mapping):
        numbers += [each for each in vocabulary.values() if isinstance(each, int)]
    elif isinstance(vocabulary, list):  # Unigram: (token, score) pairs in order
        numbers.append(len(vocabulary) - 1)
    added = found.get("added_tokens")
    for each in added if isinstance(added, list) else []:
        if isinstance(each, Mapping) and isinstance(each.get("id"), int):
            numbers.append(each["id"])
    return max(numbers, default=None)
