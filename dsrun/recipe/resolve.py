"""argv, run.yaml and defaults -> one Recipe. The command line wins over args.json, that over run.yaml."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from dsrun.errors import UsageError
from dsrun.recipe.compat.removed import translate
from dsrun.recipe.flags import CHOSEN, DISPLACES, FIXED, SECRETS, all_flags, by_spelling, hf_flags, normalise, own_flags
from dsrun.recipe.parsed_value import ParsedValue
from dsrun.recipe.parser import parse, read_json
from dsrun.recipe.recipe import DEFAULT, Recipe, validate
from dsrun.system.terminal.secrets import MASK, masked_values


def resolve(argv: Sequence[str], cwd: Path) -> Recipe:
    """What `dsrun train ARGV` asks for, called in the folder `cwd`.

    Reads --config, --mix and args.json files and nothing else. Raises UsageError for everything that is wrong
    without looking at models, data or hardware."""
    notices: list[str] = []
    given = given_values(argv, cwd, notices)
    every = given.get("eval_steps")
    if every is not None and every.value is not None and "eval_strategy" not in given:
        # The Trainer would evaluate at no step at all for --eval-steps alone.
        given["eval_strategy"] = replace(every, name="eval_strategy", value="steps")
    values = {name: each.value for name, each in given.items()}
    recipe = Recipe.of(values, {name: each.source for name, each in given.items()}, argv=tuple(argv))
    return replace(recipe, notices=(*notices, *validate(recipe)))


def given_values(
    argv: Sequence[str], cwd: Path, notices: list[str], run_file: str | None = None
) -> dict[str, ParsedValue]:
    """Every given value by canonical name: `argv` over an args.json in it, that over the run.yaml that --config names,
    that over `run_file`. What happens to removed and displaced flags is added to `notices`.

    Raises UsageError for an unknown flag, a value that a flag does not take, and a file that cannot be read."""
    parsed = parse(argv)
    layers = [_layer(parsed.given, notices)]
    if parsed.json_file is not None:
        layers.append(_layer(read_json(cwd / parsed.json_file, parsed.json_file), notices))
    config = next((layer["config"].value for layer in layers if "config" in layer), None)
    for file in filter(None, (config, run_file)):
        from dsrun.recipe.runfile import read_run_file  # PyYAML, only where it is needed

        layers.append(_layer(read_run_file(cwd / file, file), notices))
    merged = _merge(layers, notices)
    if "mix" in merged:
        from dsrun.recipe.runfile import read_mixture

        merged["mix"] = replace(merged["mix"], value=read_mixture(merged["mix"].value, cwd))
    return merged


def _layer(given: Iterable[ParsedValue], notices: list[str]) -> dict[str, ParsedValue]:
    """The values of one place by canonical name, removed flags translated and contradictions refused."""
    given = list(given)
    present = {each.name for each in given}
    layer: dict[str, ParsedValue] = {}
    for each in given:
        current, notice = translate(each, present)
        if notice is not None and notice not in notices:
            notices.append(notice)
        if current is not None:
            before = layer.get(current.name)
            layer[current.name] = current if before is None else _both(before, current)
    return layer


def _both(first: ParsedValue, second: ParsedValue) -> ParsedValue:
    """One flag given twice in one place: our lists add up, else the last one holds if spelled alike."""
    flag = all_flags()[first.name]
    if flag.owner == "dsrun" and flag.kind == "list":
        return replace(second, value=[*first.value, *second.value])
    if first.value != second.value and first.spelling != second.spelling:
        hidden = first.name in SECRETS
        one, other = (f"{each.where} {MASK}" if hidden else str(each) for each in (first, second))
        raise UsageError(f"{one} and {other} contradict each other", fix="they are one flag; give it once")
    return second


def _merge(layers: Sequence[Mapping[str, ParsedValue]], notices: list[str]) -> dict[str, ParsedValue]:
    """All places as one, the strongest first in `layers`."""
    merged: dict[str, ParsedValue] = {}
    for layer in layers:
        aside = _displaced((each.name, each.value) for each in merged.values())
        for name, each in layer.items():
            if name in merged:
                continue
            if name in aside:
                notices.append(f"{each.where} gives way to {merged[aside[name]].where}")
                continue
            merged[name] = each
    return merged


def _displaced(stronger: Iterable[tuple[str, Any]]) -> dict[str, str]:
    """The names set aside, each with the name that does it. False, None and -1 displace nothing."""
    return {
        weaker: name
        for name, value in stronger
        if value is not None and value is not False and value != -1
        for weaker in DISPLACES.get(name, ())
    }


def with_defaults(recipe: Recipe, values: Mapping[str, Any], source: str) -> Recipe:
    """The recipe with typed values, by any spelling of theirs, put under everything that was given.

    A value is also left out when what was given answers the same question (`DISPLACES`). Raises UsageError
    when the whole does not fit together, KeyError for a name that is not a flag."""
    given = [(name, recipe.value(name)) for name in recipe.sources if recipe.given(name)]
    taken = {name for name, _ in given} | _displaced(given).keys()
    canonical = {by_spelling()[normalise(name)].name: value for name, value in values.items()}
    fresh = {name: value for name, value in canonical.items() if name not in taken}
    own = {name: value for name, value in fresh.items() if name in own_flags()}
    hf = {hf_flags()[name].key: value for name, value in fresh.items() if name not in own}
    changed = replace(
        recipe,
        spec=replace(recipe.spec, **own),
        hf=recipe.hf | hf,
        sources=recipe.sources | dict.fromkeys(fresh, source),
    )
    remarks = [each for each in validate(changed) if each not in recipe.notices]
    return replace(changed, notices=(*recipe.notices, *remarks))


def explain(recipe: Recipe) -> list[tuple[str, Any, str]]:
    """(flag, value, source) for all of ours, then the training arguments, given ones first.

    Secrets are hidden."""
    given = [name for name in hf_flags() if name in recipe.sources]
    rest = [name for name in hf_flags() if name not in recipe.sources]
    rows = []
    for name in (*own_flags(), *given, *rest):
        value = recipe.value(name) if recipe.given(name) else FIXED.get(name, CHOSEN.get(name, recipe.value(name)))
        shown = MASK if name in SECRETS and value is not None else masked_values(value)
        rows.append((name, shown, recipe.sources.get(name, DEFAULT)))
    return rows
