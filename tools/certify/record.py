"""The configs that are certified, and docs/certified/VERDICTS.json, the record of their verdicts."""

import json
from collections.abc import Mapping
from datetime import date
from pathlib import Path
from typing import Any

from dsrun.certify.verdict import FACTS, config_hash
from dsrun.system.files import read_object, replacing
from dsrun.system.host import versions

CHECKOUT = Path(__file__).parents[2]
CONFIGS = CHECKOUT / "tests" / "data" / "published_configs.json"
"""By name, as their authors published them."""
RECORD = CHECKOUT / "docs" / "certified" / "VERDICTS.json"
PARTS = 10
"""Each day another of so many parts is certified anew in CI."""

Rows = dict[str, dict[str, Any]]


def configs(file: Path = CONFIGS) -> Rows:
    """Each config by its model's name; none where the file is missing."""
    return read_object(file)


def read_record(file: Path = RECORD) -> Rows:
    """What was found about each model, by name."""
    return dict(read_object(file).get("models", {}))


def write_record(models: Mapping[str, Any], file: Path = RECORD) -> None:
    """A model a line, so that a change of one is a change of one line."""
    lines = ",\n".join(f"{json.dumps(name)}: {json.dumps(models[name])}" for name in sorted(models))
    with replacing(file) as partial:
        partial.write_text(f'{{"version": 1, "models": {{\n{lines}\n}}}}\n', encoding="utf-8")


def installed() -> dict[str, str]:
    return {name: version for name, version in versions(FACTS["packages"]).items() if name in FACTS["packages"]}


def entry_of(config: Mapping[str, Any], answer: Mapping[str, Any]) -> dict[str, Any]:
    """What is recorded of `dsrun certify --format json`, or of an `error` in place of a verdict: problems with their
    texts, of what is fine the status alone."""
    entry = {"model_type": config["model_type"], "config": config_hash(config)[:16], "versions": installed()}
    entry |= {"date": date.today().isoformat()}
    if "error" in answer:
        return entry | {"error": answer["error"]}
    entry |= {name: answer[name] for name in ("task", "device", "seconds", "cpu_seconds")}
    return entry | {"checks": {row["check"]: _result(row) for row in answer["checks"]}}


def _result(row: Mapping[str, Any]) -> dict[str, Any]:
    problems = [each for each in row["findings"] if each["level"] != "info"]
    told = [{name: each[name] for name in ("level", "where", "message", "fix") if each[name]} for each in problems]
    return {"status": row["status"]} | ({"avoid": row["avoid"], "findings": told} if told else {})


def is_due(config: Mapping[str, Any], entry: Mapping[str, Any] | None) -> bool:
    """Whether a model has no record, or one of another config or other versions."""
    if not entry or entry["config"] != config_hash(config)[:16]:
        return True
    return bool(entry["versions"] != installed())


def part_of(names: list[str], day: date) -> list[str]:
    """Those of a day: each of `names` comes once in PARTS days."""
    return names[day.toordinal() % PARTS :: PARTS]


def worse(before: Mapping[str, Any] | None, now: Mapping[str, Any]) -> list[str]:
    """The checks that fail now and did not before; "verdict" where there is none any more."""
    known = (before or {}).get("checks", {})
    if "error" in now:
        return [] if before and "error" in before else ["verdict"]
    failed = [code for code, each in now["checks"].items() if each["status"] == "fail"]
    return [code for code in failed if known.get(code, {}).get("status") != "fail"]
