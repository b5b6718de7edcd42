"""The resolved recipe of a run as JSON.

The supervisor resolves the flags once; the ranks of all nodes and attempts train by its result. Rank 0 keeps it in the
run folder, for requeued jobs, and for later starts to be compared with."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from dsrun.errors import UsageError
from dsrun.recipe.deepspeed_file import DeepspeedFileCheck, with_deepspeed_read
from dsrun.recipe.flags import RENAMED, SECRETS, all_flags, own_flags, shown_value
from dsrun.recipe.recipe import Recipe
from dsrun.recipe.resolve import resolve
from dsrun.runs.attempts import earlier_signatures, signatures
from dsrun.runs.folder import RunFolder
from dsrun.runs.records import write_json_atomic
from dsrun.system import variables
from dsrun.system.terminal.secrets import MASK, masked, masked_values, unmasked_values

VERSION = 1

ABOUT_THE_START = frozenset(
    {"config", "debug", "dry_run", "elastic", "explain", "find_port", "force", "log_format", "master_port", "notify"}
    | {"nproc", "output", "resume", "warm"}
)
"""Flags that say how a run is started, not what it computes."""


_ON_THIS_MACHINE = frozenset({"config", "nproc", "master_port", "find_port"})
"""Flags that mean nothing to a job."""


def to_json(recipe: Recipe) -> dict[str, Any]:
    """All given values, secrets included; the inverse is `from_json`."""
    given = [name for name in recipe.sources if recipe.given(name)]
    return {
        "version": VERSION,
        "argv": list(recipe.argv),
        "values": {name: recipe.value(name) for name in given},
        "sources": {name: recipe.sources[name] for name in given},
    }


def from_json(found: Mapping[str, Any], where: str) -> Recipe:
    """The recipe; `where` is what an error names. Raises UsageError if another version of dsrun wrote it."""
    try:
        if found["version"] != VERSION:
            raise KeyError("version")
        return Recipe.of(dict(found["values"]), dict(found["sources"]), argv=tuple(found["argv"]))
    except (KeyError, TypeError, ValueError) as error:
        what = f"{where} is not a recipe of this version of dsrun ({error})"
        raise UsageError(what, fix="use one version on all nodes") from None


def with_secrets_of(recipe: Recipe, other: Recipe) -> Recipe:
    """The recipe with the secrets of `other`: they are neither written to run folders nor sent to nodes."""
    given, others = asdict(recipe.spec), asdict(other.spec)
    spec: dict[str, Any] = unmasked_values(given, others) | {name: others[name] for name in SECRETS & others.keys()}
    hf = {name: other.hf[name] for name in SECRETS if name in other.hf}
    kept = {name: value for name, value in recipe.hf.items() if name not in SECRETS}
    return replace(recipe, spec=replace(recipe.spec, **spec), hf=unmasked_values(kept, other.hf) | hf)


def without_secrets(recipe: Recipe) -> Recipe:
    """The recipe with its access tokens removed, from `argv`, too, and all other secrets masked."""
    secrets = {str(recipe.value(name)) for name in SECRETS if recipe.given(name)} - {"True", "None"}
    spec: dict[str, Any] = masked_values(asdict(recipe.spec)) | dict.fromkeys(SECRETS & own_flags().keys())
    argv = masked(recipe.argv)
    for secret in secrets:
        argv = [word.replace(secret, MASK) for word in argv]
    return replace(
        recipe,
        spec=replace(recipe.spec, **spec),
        hf=masked_values({name: value for name, value in recipe.hf.items() if name not in SECRETS}),
        sources={name: source for name, source in recipe.sources.items() if name not in SECRETS},
        argv=tuple(argv),
    )


def frozen_argv(recipe: Recipe) -> list[str]:
    """The flags by which a job trains by this recipe, whatever its run.yaml and args.json say when it starts.

    Access tokens are left out."""
    words: list[str] = []
    for name in recipe.sources:
        value = recipe.value(name)
        if not recipe.given(name) or name in SECRETS | _ON_THIS_MACHINE or value is None:
            continue
        flag = all_flags()[name]
        shown = "--debug" if name == RENAMED["debug"] else flag.shown
        if value is True and flag.kind in ("bool", "bool|str"):
            words.append(shown)
        elif isinstance(value, list):
            words += [shown, *map(str, value)]
        elif isinstance(value, dict):
            words += [shown, json.dumps(value, separators=(",", ":"))]
        else:
            words += [shown, str(value).lower() if isinstance(value, bool) else str(value)]
    return words


def differences(before: Recipe, now: Recipe) -> list[str]:
    """What training by `now` does otherwise than by `before`, one "--flag: old -> new (source)" each; secrets apart."""
    before, now = without_secrets(before), without_secrets(now)
    names = [*now.sources, *(name for name in before.sources if name not in now.sources)]
    lines = []
    for name in names:
        if name in ABOUT_THE_START:
            continue
        old, new = before.value(name), now.value(name)
        if old != new:
            source = now.sources.get(name, "default")
            lines += [f"{what} ({source})" for what in _changes(all_flags()[name].shown, name, old, new)]
    return lines


def _changes(shown: str, name: str, old: Any, new: Any) -> list[str]:
    """One line, or for two JSON objects one per key: "--deepspeed zero_optimization.stage: 2 -> 3"."""
    if isinstance(old, dict) and isinstance(new, dict):
        joint = "." if " " in shown else " "
        keys = [key for key in {**old, **new} if old.get(key) != new.get(key)]
        return [line for key in keys for line in _changes(f"{shown}{joint}{key}", "", old.get(key), new.get(key))]
    before, after = (("not set" if value is None or value == [] else shown_value(name, value)) for value in (old, new))
    return [f"{shown}: {before} -> {after}"]


def read_stored(folder: RunFolder) -> tuple[Recipe, frozenset[str]] | None:
    """The recipe that the run folder's last start trained by, from its recipe.json, and the signatures of the run that
    wrote it; None if there is none that this version can read."""
    try:
        found = json.loads(folder.recipe.read_text(encoding="utf-8"))
        return from_json(found, str(folder.recipe)), frozenset(found["signed"])
    except (OSError, ValueError, KeyError, TypeError, RecursionError, UsageError):
        return None


def write_stored(recipe: Recipe, folder: RunFolder, environ: Mapping[str, str]) -> None:
    """Write recipe.json, secrets left out, signed as the checkpoints of this run are."""
    content = {**to_json(without_secrets(recipe)), "signed": sorted(signatures(environ).values())}
    write_json_atomic(folder.recipe, content)


def recipe_in_force(requested: Recipe, folder: RunFolder, environ: Mapping[str, str]) -> tuple[Recipe, str | None]:
    """The recipe to train by in `folder`, and a notice if the settings have changed since its last start.

    A restarted rank and a requeued job keep the recipe of the run they belong to; a new start takes `requested`."""
    stored = read_stored(folder)
    if stored is None:
        return requested, None
    recipe, signed = stored
    changed = differences(recipe, requested)
    if not signed.isdisjoint(earlier_signatures(environ)):
        notice = f"the run keeps the settings it started with; changed since: {'; '.join(changed)}"
        return with_secrets_of(recipe, requested), notice if changed else None
    if not changed or requested.spec.resume == "never":
        return requested, None
    return requested, f"settings changed since the last start in {folder.path}: {'; '.join(changed)}"


def worker_recipe(
    argv: Sequence[str],
    environ: Mapping[str, str],
    *,
    world_size: int | None = None,
    lint: DeepspeedFileCheck | None = None,
) -> Recipe:
    """The recipe of a rank: its supervisor's, or for a rank that torchrun or srun started itself, that of its flags,
    whose --deepspeed file `lint` checks."""
    file = environ.get(variables.RECIPE)
    if argv or file is None:
        return with_deepspeed_read(resolve(argv, Path.cwd()), Path.cwd(), world_size=world_size, lint=lint)
    return from_json(json.loads(Path(file).read_text(encoding="utf-8")), file)
