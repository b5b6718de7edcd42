"""Whether a checkpoint may be loaded: undamaged, trusted, and of a run whose facts in the manifest fit this one's."""

import hashlib
import json
import os
from collections.abc import Sized
from pathlib import Path
from typing import Any

from dsrun.datafiles import SubjectNames, evaluate, toml_beside
from dsrun.errors import UsageError
from dsrun.recipe.recipe_spec import TrainSpec
from dsrun.runs.attempts import refuse_untrusted, signatures
from dsrun.runs.heartbeat import SignOfLife
from dsrun.runs.manifest import (
    MANIFEST,
    STATE_FILE,
    CheckpointManifest,
    FileDamage,
    damaged,
    missing_or_wrong_size,
    read_manifest,
    shared_out,
)
from dsrun.system.files import parse_json
from dsrun.system.host import versions
from dsrun.train.base.distributed import all_gather_object, rank0_first, rank0_shares, ranks
from dsrun.train.base.plan import TrainingPlan
from dsrun.train.base.refusals import refusal
from dsrun.train.data.data_request import PreparedData
from dsrun.train.data.encoding.tokenizer import tokenizer_identity
from dsrun.train.model.adapters import lora_targets
from dsrun.train.model.parameter_groups import LearningRates
from dsrun.zero.ops import stage_of

CONFIG_FILE = "config.json"
STATES = ("global_step*", "optimizer*", "rng_state*")
"""What DeepSpeed, plain torch or FSDP leave beside the weights, one or the other."""


_TABLE = toml_beside(__file__, "checkpoint.toml")
_PASSING = frozenset(_TABLE["config"]["passing"])


def read_through(path: Path, *, trust: bool, beat: SignOfLife) -> list[FileDamage]:
    """What is wrong with a checkpoint, its contents read; [] for a sound one. A collective."""
    manifest: CheckpointManifest | None = None

    def inspect() -> list[FileDamage]:
        nonlocal manifest
        manifest = read_manifest(path)
        return missing_or_wrong_size(path, manifest)

    damage = rank0_first(inspect)
    if damage:
        return damage
    if not trust:
        rank0_first(lambda: refuse_untrusted(path))
    # Rank 0 alone has listed every file: it assigns each rank the ones to read.
    mine = rank0_shares(lambda: shared_out(manifest["files"] if manifest else {}, ranks()))
    found = all_gather_object(damaged(path, mine, beat=beat))
    return [each for part in found for each in part]


def check_foreign(path: Path, *, trust: bool) -> None:
    """Raise UsageError for what is wrong with a checkpoint without a manifest, as far as shows before it is loaded."""
    if not trust:
        refuse_untrusted(path)
    for file in (path / STATE_FILE, path / CONFIG_FILE):
        try:
            parse_json(file.read_text(encoding="utf-8") if file.exists() else "{}")
        except ValueError as error:
            raise UsageError(f"{path}: {file.name} is damaged", fix="choose another checkpoint") from error
    latest = path / "latest"
    if latest.is_file():
        tag = latest.read_bytes().decode(errors="replace").strip()
        if not tag or not (path / tag).is_dir():
            raise refusal("checkpoint.latest", path=path, tag=tag)


def check_best(path: Path, *, trust: bool, beat: SignOfLife) -> None:
    """Raise ToolError, on all ranks, unless the best checkpoint, written long ago, may become the final model. A
    collective."""
    if rank0_first(lambda: (path / STATE_FILE).is_file() and not (path / MANIFEST).exists()):
        rank0_first(lambda: check_foreign(path, trust=trust))
        return
    damage = read_through(path, trust=trust, beat=beat)
    if damage:
        raise refusal("checkpoint.best", name=path.name, damage=damage[0])


def checkpoint_facts(plan: TrainingPlan, tokenizer: Any, data: PreparedData) -> dict[str, Any]:
    """What this run would write into a manifest's `extra`, but for the step. To be called before the model is built,
    which fits the config to the tokenizer: a resumed run compares with what the first start had at the same point."""
    identity, spec = model_identity(plan.config), plan.recipe.spec
    known = {
        "identity": identity,
        "identity_sha256": hashlib.sha256(json.dumps(identity, sort_keys=True).encode()).hexdigest(),
        "stage": stage_of(plan.deepspeed),
        "rows": len(data.train) if isinstance(data.train, Sized) else None,
        "signed": [*signatures(os.environ).values()],
    }
    words = {"lora": lora_identity(spec), "rates": LearningRates.of(spec).identity, "versions": versions()}
    names = SubjectNames(plan, {}, data=data, tokenizer_sha256=tokenizer_identity(tokenizer), **known, **words)
    return {name: evaluate(expression, names) for name, expression in _TABLE["facts"].items()}


def model_identity(config: Any) -> dict[str, Any]:
    """A model config's values that make the model another one when they change; plain JSON values."""
    return json.loads(json.dumps(_lasting(config.to_dict()), sort_keys=True, default=str))


def lora_identity(spec: TrainSpec) -> str:
    """The settings of --lora without which a checkpoint's adapters are others, in words."""
    if not spec.lora:
        return "none"
    named = lora_targets(spec)
    targets = "every linear layer" if isinstance(named, str) else ", ".join(sorted(named))
    more = [word for word, given in (("rsLoRA", spec.rslora), ("DoRA", spec.dora)) if given]
    more += [f"{spec.quantization} base"] if spec.quantization else []
    more += [f"{name} whole" for name in sorted(spec.lora_modules_to_save)]
    return ", ".join([f"rank {spec.lora}, alpha {spec.lora_alpha or 2 * spec.lora}, on {targets}", *more])


def _lasting(value: Any) -> Any:
    if isinstance(value, dict):
        return {str(key): _lasting(inner) for key, inner in value.items() if str(key) not in _PASSING}
    return value
