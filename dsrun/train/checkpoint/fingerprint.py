"""What a checkpoint's manifest says of the run that wrote it, and a resumed run compares with itself."""

from __future__ import annotations

import hashlib
import json
import os
from typing import TYPE_CHECKING, Any

from dsrun.recipe.spec import TrainSpec
from dsrun.runs.attempts import signatures
from dsrun.system.host import versions
from dsrun.train.data.tokens.special import tokenizer_identity
from dsrun.train.loop.engine import stage_of
from dsrun.train.model.load import lora_targets

if TYPE_CHECKING:
    from dsrun.train.plan import Plan

# Where the model came from and how this process computes with it; not what the model is.
_PASSING = frozenset(
    {
        "_name_or_path",
        "_commit_hash",
        "_attn_implementation",
        "_attn_implementation_internal",
        "_experts_implementation",
        "attn_implementation",
        "architectures",
        "transformers_version",
        "dtype",
        "torch_dtype",
        "use_cache",
        "id2label",
        "label2id",
    }
)


def checkpoint_facts(plan: Plan, tokenizer: Any, train: Any) -> dict[str, Any]:
    """What this run would write into a manifest's `extra`, but for the step. `train` are the rows to train on; a
    stream, or None, has no length.

    Call it before the model is built: building fits the config to the tokenizer, and a resumed run compares with what
    the first start had at the same point.
    """
    config = model_identity(plan.config)
    hf = plan.recipe.hf
    return {
        "world_size": plan.world.size,
        "zero_stage": stage_of(plan.deepspeed),
        "versions": versions(),
        "precision": plan.precision,
        "global_batch": plan.batch.global_batch,
        "micro_batch": plan.batch.micro_batch,
        "accumulation": plan.batch.accumulation,
        "seed": hf.get("seed", 42),
        "data_seed": hf.get("data_seed"),
        "train_rows": len(train) if hasattr(train, "__len__") else None,
        "model_type": plan.config.model_type,
        "config": config,
        "config_sha256": _digest(config),
        "tokenizer_sha256": tokenizer_identity(tokenizer),
        "lora": lora_identity(plan.recipe.spec),
        "signed": [*signatures(os.environ).values()],
    }


def model_identity(config: Any) -> dict[str, Any]:
    """A model config's values that make the model another one when they change; plain JSON values."""
    return json.loads(json.dumps(_lasting(config.to_dict()), sort_keys=True, default=str))


def lora_identity(spec: TrainSpec) -> str:
    """The settings of --lora without which a checkpoint's adapters are others, in words."""
    if not spec.lora:
        return "none"
    named = lora_targets(spec)
    targets = "every linear layer" if isinstance(named, str) else ", ".join(sorted(named))
    return f"rank {spec.lora}, alpha {spec.lora_alpha or 2 * spec.lora}, on {targets}"


def _lasting(value: Any) -> Any:
    if isinstance(value, dict):
        return {str(key): _lasting(inner) for key, inner in value.items() if str(key) not in _PASSING}
    return value


def _digest(value: Any) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()
