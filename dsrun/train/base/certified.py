"""What `dsrun certify` has found about the model of a run, and which flags that avoid its faults are missing."""

import shlex
from pathlib import Path
from typing import Any

from dsrun.certify.verdict import recorded
from dsrun.demo.models import TASKS
from dsrun.errors import DsrunError
from dsrun.findings.texts import text_of
from dsrun.models.folder import find
from dsrun.recipe.parsed_value import config_flags
from dsrun.recipe.resolve import given_values
from dsrun.train.base.plan import TrainingPlan
from dsrun.zero.ops import stage_of


def certify_facts(plan: TrainingPlan) -> dict[str, Any] | None:
    """For run.json: the state of the verdict, its sentence, the codes of what failed, and flags that are missing, with
    what they avoid. None for a demo, and for a model that is not that of the config.json beside it."""
    spec = plan.recipe.spec
    others = plan.given.config is not None or spec.config_name or config_flags(spec)
    if not spec.model or others or plan.title in TASKS:
        return None
    try:
        found = find(spec.model, weights=False)
    except DsrunError:
        return None
    state, verdict = recorded(found.config, "dpo" if spec.task == "dpo" else plan.task)
    if verdict and verdict.about["folder"] != str(found.folder.resolve()):
        verdict = verdict.of_architecture
    about: dict[str, Any] = verdict.about if verdict else {"time": "", "stages": [], "versions": {}}
    values = {**about["versions"], "model": shlex.quote(spec.model), "date": about["time"][:10]}
    values |= {"sentence": verdict.sentence, "stages": ", ".join(map(str, about["stages"]))} if verdict else {}
    failed = verdict.failed if verdict and state == "found" else []
    tried = {stage := stage_of(plan.deepspeed), stage + (stage == 1)} & {*about["stages"]}  # ZeRO-2 has what 1 has
    narrow = state == "found" and (not tried or (spec.lora and not about["lora"]))
    return {
        "state": state,
        "sentence": text_of(f"certified.{'narrow' if narrow and not failed else state}", **values),
        "failed": [row["check"] for row in failed],
        "missing": {flag: row["check"] for row in failed for flag in row["avoid"] if not _has(plan, flag)},
    }


def _has(plan: TrainingPlan, flag: str) -> bool:
    """Whether a run trains by a flag, such as "--packing off"; a lower ZeRO stage than that avoids the same."""
    chosen = {name: plan.precision == name for name in ("bf16", "fp16")}
    return all(
        stage_of(plan.deepspeed) <= int(each.value)
        if name == "zero"
        else chosen.get(name, plan.recipe.value(name) or False) == each.value  # None is off
        for name, each in given_values(flag.split(), Path.cwd(), []).items()
    )
