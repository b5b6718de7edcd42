"""What each key of a configuration does and why it has this value, and what a configuration cannot say by itself."""

import json
from collections.abc import Sequence
from functools import cache
from typing import Any, NamedTuple

from dsrun import zero
from dsrun.datafiles import SubjectNames, evaluate, toml_beside
from dsrun.models.families import family_of, overflow_in_fp16
from dsrun.zero.generate.blocks import ConfigContext, HardwareFacts, optimizer_of, precision_of
from dsrun.zero.generate.config import build, check_config, nested
from dsrun.zero.generate.spec import ZeroSpec
from dsrun.zero.rules import read_rules

VERSION = 1

UNKNOWN = "see DeepSpeed's documentation"


class ExplainedKey(NamedTuple):
    """One key of the configuration: its path, its value, what it does, and why it is this value."""

    key: str
    value: Any
    does: str
    why: str


@cache
def meanings() -> dict[str, str]:
    """What the keys do, by their paths."""
    return toml_beside(zero.__file__, "key_meanings.toml")


def explain(spec: ZeroSpec, facts: HardwareFacts) -> list[ExplainedKey]:
    """Every key of `generate(spec, facts=facts)` in its order. Raises UsageError as that does."""
    flat = build(spec, facts)
    check_config(nested(flat), spec, facts)
    return [
        ExplainedKey(key=path, value=reasoned.value, does=meanings().get(path, UNKNOWN), why=reasoned.why)
        for path, reasoned in flat.items()
    ]


def as_text(rows: Sequence[ExplainedKey]) -> str:
    """The explanation for a reader: three lines a key."""
    return "\n".join(
        f"{row.key} = {json.dumps(row.value, ensure_ascii=False)}\n    {row.does}\n    because: {row.why}"
        for row in rows
    )


def as_json(rows: Sequence[ExplainedKey]) -> str:
    """The explanation for a program: {"version": 1, "keys": [{"key", "value", "does", "why"}, …]}."""
    return json.dumps({"version": VERSION, "keys": [row._asdict() for row in rows]}, indent=2, ensure_ascii=False)


def notices(spec: ZeroSpec, facts: HardwareFacts) -> list[str]:
    """What is worth saying beside the file, for the Trainer and for the machine."""
    case, content = ConfigContext(spec=spec, facts=facts), toml_beside(__file__)
    agree = [flag for name, flag in content["must_agree"].items() if getattr(spec, name) is not None]
    more = {
        "trainer": case.trainer,
        "chosen": precision_of(case).value,
        "updates": optimizer_of(case),
        "checkpoints": case.preset.activation_checkpointing or spec.activation_checkpointing,
        "family": family_of(facts.model_type),
        "overflow": overflow_in_fp16(str(facts.model_type)),
        "facts": facts,
        "autoep_in_train": read_rules("config")["autoep_in_train"]["message"],
        "agree": ", ".join(agree),
    }
    names = SubjectNames(spec, {}, **more)
    lines = [row["message"].format_map(names) for row in content["notices"] if evaluate(row["when"], names)]
    return lines + _of_overrides(spec, facts)


def _of_overrides(spec: ZeroSpec, facts: HardwareFacts) -> list[str]:
    """The linter's warnings about keys that --set names."""
    named = {word.partition("=")[0] for word in spec.overrides}
    findings = check_config(nested(build(spec, facts)), spec, facts) if named else []
    found = [
        each
        for each in findings
        if (each.level == "warning" or each.code == "no_effect") and each.where.partition(" ")[0] in named
    ]
    return [f"{each.where.partition(' ')[0]}: {each.message}" for each in found]
