"""What each key of a configuration does and why it has this value, and what a configuration cannot say by itself."""

import json
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any, NamedTuple

from dsrun import zero
from dsrun.datafiles import toml_beside
from dsrun.models.families import family_of, overflow_in_fp16
from dsrun.zero.generate.blocks import ConfigContext, HardwareFacts, precision_of
from dsrun.zero.generate.config import build, check_config, nested
from dsrun.zero.generate.spec import ZeroSpec
from dsrun.zero.generate.training_blocks import optimizer_of
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


# Training arguments that must agree with a number in the file (HfTrainerDeepSpeedConfig.fill_match refuses
# anything else, and only when training starts).
MUST_AGREE = {
    "micro_batch_size": "--per_device_train_batch_size",
    "accumulation": "--gradient_accumulation_steps",
    "gradient_clipping": "--max_grad_norm",
    "lr": "--learning_rate",
    "betas": "--adam_beta1 and --adam_beta2",
    "eps": "--adam_epsilon",
    "weight_decay": "--weight_decay",
    "warmup_steps": "--warmup_steps",
    "total_steps": "--max_steps",
}


def notices(spec: ZeroSpec, facts: HardwareFacts) -> list[str]:
    """What is worth saying beside the file, for the Trainer and for the machine."""
    case = ConfigContext(spec=spec, facts=facts)
    chosen = precision_of(case).value
    lines = [line for holds, line in _of_the_machine(case, chosen) if holds]
    if case.trainer:
        lines += [line for holds, line in _of_the_trainer(case, chosen) if holds]
        agree = [flag for name, flag in MUST_AGREE.items() if getattr(spec, name) is not None]
        if agree:
            lines.append(f"the Trainer refuses the file unless it gets the same {', '.join(agree)}")
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


def _of_the_machine(case: ConfigContext, chosen: str) -> list[tuple[bool, str]]:
    spec, facts = case.spec, case.facts
    compiled = {"qwz": "--qwz", "qgz": "--qgz"}
    quantized = [flag for name, flag in compiled.items() if getattr(spec, name)]
    cpu_adam = spec.offload_optimizer != "none" and optimizer_of(case) in ("adam", "adamw", "muon")
    return [
        (
            chosen == "fp16" and family_of(facts.model_type).overflows_in_fp16,
            f"{overflow_in_fp16(str(facts.model_type))}: use bf16 or fp32",
        ),
        (
            facts.gpu is not None and facts.gpu.memory is None,
            f"--gpu {spec.gpu} is sold with different memory sizes; name one, as in {spec.gpu}-80GB",
        ),
        (bool(quantized), f"{' and '.join(quantized)}: DeepSpeed compiles its CUDA quantizer at the first start"),
        (cpu_adam, "DeepSpeed compiles its CPU Adam at the first start, unless the wheel has it"),
        (spec.super_offload, "--super-offload runs on NVIDIA GPUs only, best with NUMA binding of each rank"),
        (spec.autotp > 1 and spec.global_batch_size is not None, _TP_BATCH),
        (spec.autoep > 1, read_rules("config")["autoep_in_train"]["message"]),
    ]


_TP_BATCH = "train_batch_size counts each sample once per rank of its tensor-parallel group, as DeepSpeed wants it"


def _of_the_trainer(case: ConfigContext, chosen: str) -> list[tuple[bool, str]]:
    spec = case.spec
    shared: Callable[[str], str] = "start the Trainer with {}, or it refuses the file".format
    return [
        (chosen in ("bf16", "fp16"), shared(f"--{chosen}")),
        (chosen == "fp32", "start the Trainer without --bf16 and --fp16, or it refuses the file"),
        (spec.deepcompile, "DeepCompile begins at engine.compile(): start the Trainer with --torch_compile"),
        (
            spec.sequence_parallel > 1,
            "the Trainer builds Ulysses' groups from TrainingArguments(parallelism_config=ParallelismConfig("
            f"sp_backend='deepspeed', sp_size={spec.sequence_parallel}))",
        ),
        (
            case.preset.activation_checkpointing or bool(spec.activation_checkpointing),
            "models of Transformers checkpoint activations by the Trainer's --gradient_checkpointing, not by this file",
        ),
        (spec.zenflow, "ZenFlow takes the place of gradient accumulation: leave --gradient_accumulation_steps at 1"),
    ]
