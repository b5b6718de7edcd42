"""What the job loads: from the Hugging Face Hub (token, gated models, offline mode, endpoint and proxy), and the
tokenizer of a local model against the model: its padding token, and tokens beyond the embedding."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from dsrun.datafiles import toml_beside
from dsrun.doctor.machine_facts import DoctorTarget, MachineFacts
from dsrun.errors import DsrunError
from dsrun.findings.finding import Finding, finding_of, findings_where, first_where, text_of
from dsrun.hub.modelscope_cache import NAME as MODELSCOPE
from dsrun.hub.modelscope_cache import stored_name
from dsrun.hub.reach import DATA_SET, HubAddress, downloads, hub_models, offline_by, other_sources
from dsrun.messages import Message, joined
from dsrun.models.folder import cached_snapshot, find, hub_cache, hub_home
from dsrun.recipe.recipe import Recipe
from dsrun.system.files import read_object

GATED = tuple(toml_beside(__file__)["gated"])
"""Beginnings of models' names on the Hub whose licence must be accepted there first, by their model cards."""
TIMEOUT_S = 1.0


def look_at_hub(machine: MachineFacts, target: DoctorTarget) -> Iterator[Finding]:
    """Only what the job needs is asked for, and only whether the Hub can be reached, nothing else."""
    recipe = target.recipe
    if recipe is None:
        return
    missing = downloads(recipe, machine.environ)
    pushes = bool(recipe.hf.get("push_to_hub"))
    from_modelscope = recipe.spec.hub == MODELSCOPE
    if not missing and not pushes:
        if hub_models(recipe):
            yield finding_of("hub.cached", place="ModelScope" if from_modelscope else text_of("hub.itself"))
        return
    names = joined(", ", map(_named, missing))
    what = text_of("hub.download", names=names) if missing else text_of("hub.push")
    offline = None if from_modelscope else offline_by(machine.environ)
    if offline:
        fix = text_of("hub_offline.no_push", offline=offline)
        if missing:
            fix = text_of("hub_offline.otherwise", offline=offline, otherwise=_elsewhere(missing))
        yield finding_of("hub_offline", offline=offline, what=what, fix=fix)
        return
    hub = HubAddress.of(recipe, machine.environ)
    if from_modelscope:
        found = [*_reach(machine, hub, what=what, fix=text_of("hub.prepare"))]
    else:
        fix = _elsewhere(missing) if missing else text_of("hub.push_later")
        found = [*_token(machine, recipe, missing), *_reach(machine, hub, what=what, fix=fix)]
    yield from found or [finding_of("hub", host=hub.host, what=what)]


def _named(download: str) -> str:
    if download.startswith(DATA_SET):
        return text_of("hub.data_set", name=download.removeprefix(DATA_SET))
    return download


def token_of(machine: MachineFacts, recipe: Recipe) -> str | None:
    """The access token that huggingface_hub would use: the flag's, the variable's, or that of `hf auth login`."""
    given = recipe.spec.token or recipe.hf.get("hub_token")
    for value in (given, machine.environ.get("HF_TOKEN"), machine.environ.get("HUGGING_FACE_HUB_TOKEN")):
        if value and value is not True and str(value).strip():
            return str(value)
    file = Path(machine.environ.get("HF_TOKEN_PATH") or hub_home(machine.environ) / "token")
    try:
        return file.read_text(encoding="utf-8").strip() or None
    except (OSError, UnicodeDecodeError):
        return None


def _token(machine: MachineFacts, recipe: Recipe, missing: list[str]) -> Iterator[Finding]:
    """At most one of what is wrong with the token that is there, or with there being none."""
    names = {"token": token_of(machine, recipe), "gated": [name for name in missing if name.startswith(GATED)]}
    names |= {"pushes": recipe.hf.get("push_to_hub"), "log_in": text_of("hub.log_in")}
    yield from first_where(__file__, "token", **names)


def _reach(machine: MachineFacts, hub: HubAddress, *, what: str, fix: str) -> Iterator[Finding]:
    """Whether the hub can be reached; `fix` is what else helps."""
    if hub.invalid:
        fix = text_of("hub_endpoint.unset", variable=hub.variable)
        yield Finding(level="error", code="hub_endpoint", message=hub.invalid, fix=fix)
        return
    problem = hub.unreached(machine.environ, lambda name, port: machine.network.reachable(name, port, TIMEOUT_S))
    if problem:
        yield finding_of("hub_unreachable", problem=problem, what=what, fix=fix)


def _elsewhere(missing: list[str]) -> Message:
    """How to get the first that is missing where this machine's network does not reach."""
    name = missing[0].removeprefix(DATA_SET)
    kind = " --repo-type dataset" if missing[0].startswith(DATA_SET) else ""
    return text_of("hub.elsewhere", others=other_sources(), command=f"hf download {name}{kind}")


LARGEST = 64 * 2**20
"""Bytes of tokenizer.json; the largest on the Hub, with 260,000 tokens, have 35 MiB."""


def look_at_tokenizer(machine: MachineFacts, target: DoctorTarget) -> Iterator[Finding]:
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
