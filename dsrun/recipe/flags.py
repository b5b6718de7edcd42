"""One table of every flag: the options of TrainSpec and, beside them, the Transformers training arguments.

The second half is data (hf_flags.json, written by tools/harvest_hf_flags.py), so that `--help` and a typo's
suggestion cost no import of transformers."""

from collections.abc import Mapping
from dataclasses import MISSING, Field, dataclass
from functools import cache
from typing import Any, Literal

from dsrun.datafiles import json_beside, toml_beside
from dsrun.options import by_group, key_of, type_text, value_kind
from dsrun.recipe.recipe_spec import TrainSpec
from dsrun.system.terminal.secrets import MASK, masked_values

FlagKind = Literal["int", "float", "bool", "bool|str", "str", "json", "list", "list|str"]

# Training arguments that TrainSpec sets: their names are aliases of ours there.
OWN_ALIASES = frozenset({"output_dir", "resume_from_checkpoint", "save_total_limit"})
# TrainingArguments.debug is a list of debug options, ours a switch; the former is `trainer_debug` in every
# table, and `--debug underflow_overflow` still reaches it (dsrun.recipe.parser).
RENAMED = {"debug": "trainer_debug"}
# Values of --optim that the Trainer does not know: DeepSpeed's own, which its JSON names.
ENGINE_OPTIMIZERS = ("muon",)
# JSON flags that may name a file instead, which TrainingArguments opens, dsrun that of a mixture; or have a short form.
JSON_OR_PATH = frozenset({"deepspeed", "accelerator_config", "fsdp_config", "mix", "rope_scaling"})
# Never shown, never written to a run folder.
SECRETS = frozenset({"token", "hub_token"})


@dataclass(frozen=True, kw_only=True)
class RecipeFlag:
    """One flag: its canonical name, whose it is, what it takes, and what it is when not given.

    `aliases` are the further spellings; `key` is the field of TrainSpec or Seq2SeqTrainingArguments that it
    sets."""

    name: str
    owner: Literal["dsrun", "hf"]
    key: str
    kind: FlagKind
    default: Any
    optional: bool
    choices: tuple[str, ...] | None = None
    aliases: tuple[str, ...] = ()
    group: str = ""
    help: str = ""
    metavar: str | None = None
    example_scripts: bool = False
    per_set: bool = False

    @property
    def spellings(self) -> tuple[str, ...]:
        """Every name it answers to, underscores throughout."""
        return (self.name, *self.aliases)

    @property
    def shown(self) -> str:
        """The flag as documentation and errors write it: ours with hyphens, the others as they are."""
        return shown(self.name, self.owner)

    @property
    def default_text(self) -> str:
        """The default as help and docs write it, in words where it is chosen when a run starts; empty for none."""
        if self.default in (None, [], ()):
            return CHOSEN.get(self.name, "")
        return shown_value(self.name, self.default)

    @property
    def value_text(self) -> str:
        """What follows the flag: its placeholder, its choices, or nothing for a switch."""
        if self.choices is not None and self.metavar is None:
            return "|".join(self.choices)
        if self.kind == "bool":
            return ""
        word = self.metavar or {"int": "N"}.get(self.kind, self.name.upper())
        return f"{word} …" if self.kind == "list" else word


def shown(name: str, owner: str = "hf") -> str:
    """`--name`, with hyphens where the flag is ours."""
    return "--" + (name.replace("_", "-") if owner == "dsrun" else name)


def shown_value(name: str, value: Any) -> str:
    """A value as a message or `--explain` shows it: secrets hidden, booleans and lists as they are typed."""
    if name in SECRETS and value is not None:
        return MASK
    value = masked_values(value)
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, list):
        return " ".join(map(str, value))
    return str(value)


def normalise(name: str) -> str:
    """A flag's name as the table holds it: no leading dashes, underscores for hyphens."""
    return name.removeprefix("--").replace("-", "_")


@cache
def own_flags() -> dict[str, RecipeFlag]:
    """The options of TrainSpec by name, in the order of their declaration."""
    flags = (_own_flag(each, group) for group, found in by_group(TrainSpec).items() for each in found)
    return {flag.name: flag for flag in flags}


_KINDS: dict[str, FlagKind] = {
    "int": "int", "float": "float", "bool": "bool", "str": "str", "list[str]": "list",
    "tuple[str, ...]": "list", "dict[str, Any]": "json",
}  # fmt: skip


def _own_flag(option: Field[Any], group: str) -> RecipeFlag:
    meta = option.metadata
    kind = value_kind(option)
    return RecipeFlag(
        name=key_of(option),
        owner="dsrun",
        key=option.name,
        kind=_KINDS[kind],
        default=option.default if option.default_factory is MISSING else option.default_factory(),
        optional=kind != type_text(option),
        choices=meta["choices"],
        aliases=meta["aliases"],
        group=group,
        help=meta["help"],
        metavar=meta["metavar"],
        example_scripts=meta.get("example_scripts", False),
        per_set=meta.get("per_set", False),
    )


@cache
def hf_version() -> str:
    """The version of transformers that the data was taken from."""
    return str(_harvest()["transformers"])


@cache
def hf_flags() -> dict[str, RecipeFlag]:
    """The training arguments of Transformers by canonical name, without those that TrainSpec sets."""
    raw: Mapping[str, Mapping[str, Any]] = _harvest()["flags"]
    flags = (_hf_flag(key, entry) for key, entry in raw.items() if key not in OWN_ALIASES)
    return {flag.name: flag for flag in flags}


@cache
def _harvest() -> dict[str, Any]:
    return dict(json_beside(__file__, "hf_flags.json"))


def _hf_flag(key: str, entry: Mapping[str, Any]) -> RecipeFlag:
    choices = [*entry["choices"], *ENGINE_OPTIMIZERS] if key == "optim" else entry["choices"]
    return RecipeFlag(
        name=RENAMED.get(key, key),
        owner="hf",
        key=key,
        kind=entry["type"] if key != "report_to" else "list",  # one tracker or several: always a list
        default=entry["default"],
        optional=entry["optional"],
        choices=tuple(choices) if choices else None,
    )


@cache
def all_flags() -> dict[str, RecipeFlag]:
    """Every flag by canonical name, ours first."""
    return own_flags() | hf_flags()


@cache
def by_spelling() -> dict[str, RecipeFlag]:
    """Every flag by every spelling it has.

    Raises ValueError when two flags share one, which only a change of recipe_spec.py or of hf_flags.json can bring
    about."""
    table: dict[str, RecipeFlag] = {}
    for flag in all_flags().values():
        for spelling in flag.spellings:
            if spelling in table:
                raise ValueError(f"{spelling} names both {table[spelling].name} and {flag.name}")
            table[spelling] = flag
    return table


ZERO_STAGE = 2

DEFAULTS = toml_beside(__file__, "defaults.toml")
FIXED: dict[str, Any] = DEFAULTS["fixed"]
CHOSEN: dict[str, str] = DEFAULTS["chosen"]
TAKES: dict[str, str] = DEFAULTS["takes"]
DISPLACES: dict[str, list[str]] = DEFAULTS["displaces"]
