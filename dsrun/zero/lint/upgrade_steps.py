"""The steps of upgrade(): each rewrites one kind of old key in a parsed config, in place, and notes what it did."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from dsrun.zero.lint.legacy import (
    OLD_COMPILE,
    REMOVED,
    REMOVED_FROM_COMPILE,
    REMOVED_OPTIMIZERS,
    RENAMED,
)
from dsrun.zero.lint.source import dotted
from dsrun.zero.schema import Path, blocks, coerce, optimizer_params, removed, shown
from dsrun.zero.view import AUTO

ZERO, STAGE_3_GATHER = "zero_optimization", "stage3_gather_16bit_weights_on_model_save"
OLD_GATHER = "stage3_gather_fp16_weights_on_model_save"
OFFLOADS = {
    "cpu_offload": "offload_optimizer",
    "cpu_offload_param": "offload_param",
    "cpu_offload_params": "offload_param",
}
AIO = "aio"
OLD_PIN = "cpu_offload_use_pin_memory"
FP32_ALLREDUCE = ("fp32_allreduce", "allreduce_always_fp32")
BOOL = {"types": ["bool"], "null": True}
Config = dict[str, Any]


@dataclass(frozen=True)
class Change:
    """One thing that was rewritten: where, what, and why."""

    path: str
    what: str
    why: str

    def __str__(self) -> str:
        return f"{self.path}: {self.what} ({self.why})"


@dataclass
class Log:
    """The changes so far."""

    changes: list[Change] = field(default_factory=list)

    def add(self, path: Path, what: str, why: str) -> None:
        """Note a change."""
        self.changes.append(Change(dotted(path), what, why))


def _replace(block: Config, old: str, new: str, value: Any) -> None:
    """Put a key in the place of another."""
    rows = [
        (new, value) if key == old else (key, each) for key, each in block.items() if key != new or key == old
    ]
    block.clear()
    block.update(rows)


def _removed(config: Config, log: Log) -> None:
    """Blocks whose feature is gone."""
    elastic = config.get("elasticity")
    for name in removed(""):
        if name in config:
            del config[name]
            log.add((name,), "left out", REMOVED[name][0])
    if (
        isinstance(elastic, dict)
        and not {"train_batch_size", "train_micro_batch_size_per_gpu"} & config.keys()
    ):
        sizes = elastic.get("micro_batch_sizes")
        if isinstance(sizes, list) and sizes and all(isinstance(each, int) and each > 0 for each in sizes):
            config["train_micro_batch_size_per_gpu"] = max(sizes)
            log.add(
                ("train_micro_batch_size_per_gpu",),
                f"{max(sizes)} added",
                "elasticity chose the batch size before",
            )


def _bare_zero(config: Config, log: Log) -> None:
    """`"zero_optimization": true`, and the key that only it reads."""
    if not isinstance(config.get(ZERO), bool):
        return
    zero: Config = {"stage": int(config[ZERO])}
    log.add(
        (ZERO,),
        f'{shown(config[ZERO])} is now {{"stage": {zero["stage"]}}}',
        "the Trainer looks for a stage in it",
    )
    if "allgather_size" in config:
        zero["allgather_bucket_size"] = config.pop("allgather_size")
        log.add(
            ("allgather_size",),
            f"moved to {ZERO}.allgather_bucket_size",
            "the bare true was all that read it",
        )
    config[ZERO] = zero


def _offload(config: Config, log: Log) -> None:
    """cpu_offload and its relatives."""
    zero = config.get(ZERO)
    if not isinstance(zero, dict):
        return
    pin = coerce(zero.get(OLD_PIN), BOOL).value
    for old, new in OFFLOADS.items():
        if old not in zero:
            continue
        found = coerce(zero[old], BOOL)
        if found.coerce == "refused" and zero[old] != AUTO:
            continue  # `dsrun config check` says what is the matter with it
        known = zero.get(new)
        if not found.value or isinstance(known, dict):
            del zero[old]
            why = f"{new} says it" if isinstance(known, dict) else "it was off, which is the default"
            log.add((ZERO, old), "left out", why)
        else:
            block = {"device": "cpu", "pin_memory": True if pin is None else pin}
            _replace(zero, old, new, block)
            log.add((ZERO, old), f"is now {new}: {shown(block)}", "the old name is deprecated")
    if OLD_PIN in zero:
        _pin(zero, log)


def _pin(zero: Config, log: Log) -> None:
    found = coerce(zero[OLD_PIN], BOOL)
    if found.coerce == "refused" and zero[OLD_PIN] != AUTO:
        return
    moved = []
    for name in ("offload_optimizer", "offload_param"):
        block = zero.get(name)
        if (
            isinstance(block, dict)
            and found.value is not None
            and block.setdefault("pin_memory", found.value) == found.value
        ):
            moved.append(name)
    del zero[OLD_PIN]
    log.add(
        (ZERO, OLD_PIN),
        f"moved into {' and '.join(moved)}" if moved else "left out",
        "it does nothing by itself any more",
    )


def _zero_keys(config: Config, log: Log) -> None:
    """Renamed and removed keys of zero_optimization."""
    zero = config.get(ZERO)
    if not isinstance(zero, dict):
        return
    if OLD_GATHER in zero:
        if STAGE_3_GATHER in zero or "gather_16bit_weights_on_model_save" in zero:
            del zero[OLD_GATHER]
            log.add((ZERO, OLD_GATHER), "left out", "DeepSpeed refuses it beside its new name")
        else:
            _replace(zero, OLD_GATHER, STAGE_3_GATHER, zero[OLD_GATHER])
            log.add((ZERO, OLD_GATHER), f"renamed to {STAGE_3_GATHER}", "it gathers bf16 too")
    for name in removed(ZERO):
        if name in zero:
            del zero[name]
            log.add((ZERO, name), "left out", REMOVED[name][0])
    if "legacy_stage1" in zero:
        del zero["legacy_stage1"]
        log.add((ZERO, "legacy_stage1"), "left out", "the old stage 1 was removed, and true is refused")


def _moved_aio(config: Config, log: Log) -> None:
    """aio inside zero_optimization, where the Transformers documentation had it: DeepSpeed never read it there."""
    zero = config.get(ZERO)
    if not isinstance(zero, dict) or not isinstance(zero.get(AIO), dict):
        return
    block = zero.pop(AIO)
    if AIO in config:
        log.add((ZERO, AIO), "left out", "aio at the top level holds")
    else:
        config[AIO] = block
        log.add((ZERO, AIO), "moved to the top level", "DeepSpeed reads it only there, and refuses it here")


def _renamed(config: Config, log: Log) -> None:
    """Keys that got another name inside their block."""
    for (name, old), new in RENAMED.items():
        block = config.get(name)
        if not isinstance(block, dict) or old not in block:
            continue
        if new in block:
            del block[old]
            log.add((name, old), "left out", f"{new} says it")
        else:
            _replace(block, old, new, block[old])
            log.add((name, old), f"renamed to {new}", "DeepSpeed no longer reads the old name")


def _compile(config: Config, log: Log) -> None:
    """Keys of torch.compile that DeepSpeed 0.14 read from its file."""
    block = config.get("compile")
    if not isinstance(block, dict):
        return
    gone = [name for name in OLD_COMPILE if name in block]
    for name in gone:
        del block[name]
        log.add(("compile", name), "left out", REMOVED_FROM_COMPILE[0])
    if gone and not block:
        del config["compile"]


def _bf16(config: Config, log: Log) -> None:
    """bfloat16, and what was copied from the fp16 block."""
    if "bfloat16" in config:
        if isinstance(config.get("bf16"), dict):
            del config["bfloat16"]
            log.add(("bfloat16",), "left out", "bf16 beside it holds")
        else:
            _replace(config, "bfloat16", "bf16", config["bfloat16"])
            log.add(("bfloat16",), "renamed to bf16", "the Trainer does not read bfloat16")
    block = config.get("bf16")
    if not isinstance(block, dict):
        return
    if "check_overflow" in block and "check_grad_overflow" in block:
        del block["check_overflow"]
        log.add(("bf16", "check_overflow"), "left out", "check_grad_overflow says it")
    elif "check_overflow" in block:
        _replace(block, "check_overflow", "check_grad_overflow", block["check_overflow"])
        log.add(
            ("bf16", "check_overflow"), "renamed to check_grad_overflow", "the documentation had it wrong"
        )
    for name in [
        each for each in block if each in blocks()["fp16"].keys and each not in blocks()["bf16"].keys
    ]:
        del block[name]
        log.add(("bf16", name), "left out", "bf16 has no loss scale; it is a key of fp16")


def _allreduce(config: Config, log: Log) -> None:
    for name in FP32_ALLREDUCE:
        if name in config:
            wanted = config[name] is True and "communication_data_type" not in config
            if wanted:
                _replace(config, name, "communication_data_type", "fp32")
            else:
                del config[name]
            log.add(
                (name,),
                'is now "communication_data_type": "fp32"' if wanted else "left out",
                "DeepSpeed ignores it",
            )


def _optimizer(config: Config, log: Log) -> None:
    """Optimizers that are gone, with the parameters that only they had, and max_grad_norm."""
    block = config.get("optimizer")
    if not isinstance(block, dict):
        return
    name, params = block.get("type"), block.get("params")
    gone = REMOVED_OPTIMIZERS.get(name.lower()) if isinstance(name, str) else None
    if isinstance(params, dict) and "max_grad_norm" in params:
        limit = params.pop("max_grad_norm")
        kept = "gradient_clipping" in config
        if not kept:
            config["gradient_clipping"] = limit
        what = "left out" if kept else "moved to gradient_clipping"
        log.add(("optimizer", "params", "max_grad_norm"), what, "no optimizer takes it")
    if gone is None:
        return
    reason, instead = gone
    block["type"] = instead
    log.add(("optimizer", "type"), f"{name} is now {instead}", reason)
    known = optimizer_params()[instead.lower()] or []
    extra = {each: params for each in params if each not in known} if isinstance(params, dict) else {}
    for key, holder in extra.items():
        del holder[key]
        log.add(("optimizer", "params", key), "left out", f"{instead} does not take it")


def _scheduler(config: Config, log: Log) -> None:
    """A warm-up of no steps: refused since 0.19.6, and taken for two steps before."""
    block = config.get("scheduler")
    params = block.get("params") if isinstance(block, dict) else None
    if not isinstance(params, dict):
        return
    steps = params.get("warmup_num_steps")
    whole = isinstance(steps, float) and steps.is_integer() and steps > 0
    if isinstance(steps, int | float) and not isinstance(steps, bool) and (steps == 0 or whole):
        params["warmup_num_steps"] = max(1, int(steps))
        what = f"{shown(steps)} is now {max(1, int(steps))}"
        log.add(
            ("scheduler", "params", "warmup_num_steps"), what, "DeepSpeed 0.19.6 wants a whole number above 0"
        )


STEPS: tuple[Callable[[Config, Log], None], ...] = (
    _removed,
    _bare_zero,
    _offload,
    _zero_keys,
    _moved_aio,
    _renamed,
    _compile,
    _bf16,
    _allreduce,
    _optimizer,
    _scheduler,
)
