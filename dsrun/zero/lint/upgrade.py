"""upgrade(): an old DeepSpeed config in today's keys. Each step rewrites one kind of old key, and logs what it did.

The order of the keys and the indentation stay. A file without old keys comes back byte for byte."""

import json
import re
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from dsrun.errors import UsageError
from dsrun.zero.lint.codes import printable
from dsrun.zero.lint.source import JsonSource, NotJsonError, dotted, read
from dsrun.zero.schema import Path, blocks, coerce, legacy, optimizer_params, removed, shown
from dsrun.zero.view import AUTO, MISSING, ZERO

ConfigObject = dict[str, Any]
STAGE_3_GATHER = "stage3_gather_16bit_weights_on_model_save"
OLD_GATHER = "stage3_gather_fp16_weights_on_model_save"
OFFLOADS = ("cpu_offload", "cpu_offload_param", "cpu_offload_params")
OLD_PIN = "cpu_offload_use_pin_memory"
FP32_ALLREDUCE = ("fp32_allreduce", "allreduce_always_fp32")
BOOL = {"types": ["bool"], "null": True}


class ConfigChange(NamedTuple):
    """One thing that was rewritten: where, what, and why."""

    path: str
    what: str
    why: str

    def __str__(self) -> str:
        return f"{self.path}: {self.what} ({self.why})"


def block_at(config: ConfigObject, *path: str) -> ConfigObject:
    """The object at a path; an empty one where there is none."""
    for key in path:
        found = config.get(key)
        config = found if isinstance(found, dict) else {}
    return config


@dataclass
class ChangeLog:
    """The changes of a configuration so far."""

    config: ConfigObject
    changes: list[ConfigChange] = field(default_factory=list)

    def add(self, path: Path, what: str, why: str) -> None:
        self.changes.append(ConfigChange(dotted(path), what, why))

    def leave_out(self, path: tuple[str, ...], why: str) -> None:
        """Remove the key at the end of `path`, if it is there."""
        if block_at(self.config, *path[:-1]).pop(path[-1], MISSING) is not MISSING:
            self.add(path, "left out", why)

    def replace(self, path: tuple[str, ...], new: str, value: Any, what: str, why: str) -> None:
        block, old = block_at(self.config, *path[:-1]), path[-1]
        rows = [(new, value) if key == old else (key, each) for key, each in block.items() if key != new or key == old]
        block.clear()
        block.update(rows)
        self.add(path, what, why)

    def rename(self, path: tuple[str, ...], new: str, why: str, *, taken: bool | None = None, holds: str = "") -> None:
        """Give the key at the end of `path` its new name, or leave it out where that is `taken` and `holds`."""
        block = block_at(self.config, *path[:-1])
        if new in block if taken is None else taken:
            self.leave_out(path, holds or f"{new} says it")
        elif path[-1] in block:
            self.replace(path, new, block[path[-1]], f"renamed to {new}", why)


def _removed(config: ConfigObject, log: ChangeLog) -> None:
    """Blocks whose feature is gone."""
    _amp(config, log)
    sizes = block_at(config, "elasticity").get("micro_batch_sizes")
    for name in removed(""):
        log.leave_out((name,), legacy()["removed"][name][0])
    known = {"train_batch_size", "train_micro_batch_size_per_gpu"} & config.keys()
    if not known and isinstance(sizes, list) and sizes and all(isinstance(each, int) and each > 0 for each in sizes):
        config["train_micro_batch_size_per_gpu"] = max(sizes)
        what = f"{max(sizes)} added"
        log.add(("train_micro_batch_size_per_gpu",), what, "elasticity chose the batch size before")


def _amp(config: ConfigObject, log: ChangeLog) -> None:
    """Apex's mixed precision, which was fp16's but for opt_level O0."""
    amp = block_at(config, "amp")
    other = {"fp16", "bf16", "bfloat16", "torch_autocast", "data_types"} & config.keys()
    if other or amp.get("enabled") not in (True, AUTO) or amp.get("opt_level") == "O0":
        return
    why = "NVIDIA Apex was removed; better is bf16, on GPUs since Ampere"
    fp16 = {"enabled": amp["enabled"]}
    log.replace(("amp",), "fp16", fp16, f'is now "fp16": {shown(fp16)}', why)


def _mics(zero: ConfigObject, log: ChangeLog) -> None:
    """MiCS, which sharded a model inside groups of ranks; hpZ does that for the weights of the backward pass."""
    size, hpz = zero.get("mics_shard_size"), "zero_hpz_partition_size"
    if isinstance(size, int) and not isinstance(size, bool) and size > 1 and zero.get("stage") == 3 and hpz not in zero:
        why = "MiCS was removed; hpZ gathers weights inside as many ranks, and optimizer states are sharded over all"
        log.rename((ZERO, "mics_shard_size"), hpz, why)


def _bare_zero(config: ConfigObject, log: ChangeLog) -> None:
    """`"zero_optimization": true`, and the key that only it reads."""
    if not isinstance(config.get(ZERO), bool):
        return
    zero: ConfigObject = {"stage": int(config[ZERO])}
    what = f'{shown(config[ZERO])} is now {{"stage": {zero["stage"]}}}'
    log.add((ZERO,), what, "the Trainer looks for a stage in it")
    if "allgather_size" in config:
        zero["allgather_bucket_size"] = config.pop("allgather_size")
        log.add(("allgather_size",), f"moved to {ZERO}.allgather_bucket_size", "the bare true was all that read it")
    config[ZERO] = zero


def _offload(config: ConfigObject, log: ChangeLog) -> None:
    """cpu_offload and its relatives."""
    zero = block_at(config, ZERO)
    pin = coerce(zero.get(OLD_PIN), BOOL).value
    for old in OFFLOADS:
        new = "offload_param" if "param" in old else "offload_optimizer"
        found = coerce(zero.get(old), BOOL)
        if old not in zero or (found.coerce == "refused" and zero[old] != AUTO):
            continue  # `dsrun config check` says what is the matter with it
        if isinstance(zero.get(new), dict):
            log.leave_out((ZERO, old), f"{new} says it")
        elif not found.value:
            log.leave_out((ZERO, old), "it was off, which is the default")
        else:
            block = {"device": "cpu", "pin_memory": True if pin is None else pin}
            log.replace((ZERO, old), new, block, f"is now {new}: {shown(block)}", "the old name is deprecated")
    _pin(zero, log)


def _pin(zero: ConfigObject, log: ChangeLog) -> None:
    found = coerce(zero.get(OLD_PIN), BOOL)
    if OLD_PIN not in zero or (found.coerce == "refused" and zero[OLD_PIN] != AUTO):
        return
    moved = [
        name
        for name in ("offload_optimizer", "offload_param")
        if isinstance(zero.get(name), dict)
        and found.value is not None
        and zero[name].setdefault("pin_memory", found.value) == found.value
    ]
    del zero[OLD_PIN]
    what = f"moved into {' and '.join(moved)}" if moved else "left out"
    log.add((ZERO, OLD_PIN), what, "it does nothing by itself any more")


def _zero_keys(config: ConfigObject, log: ChangeLog) -> None:
    """Renamed and removed keys of zero_optimization."""
    zero = block_at(config, ZERO)
    taken = STAGE_3_GATHER in zero or "gather_16bit_weights_on_model_save" in zero
    holds = "DeepSpeed refuses it beside its new name"
    log.rename((ZERO, OLD_GATHER), STAGE_3_GATHER, "it gathers bf16 too", taken=taken, holds=holds)
    _mics(zero, log)
    for name in removed(ZERO):
        log.leave_out((ZERO, name), legacy()["removed"][name][0])
    log.leave_out((ZERO, "legacy_stage1"), "the old stage 1 was removed, and true is refused")


def _moved_aio(config: ConfigObject, log: ChangeLog) -> None:
    """aio inside zero_optimization, where the Transformers documentation had it: DeepSpeed never read it there."""
    zero = block_at(config, ZERO)
    if not isinstance(zero.get("aio"), dict):
        return
    if "aio" in config:
        log.leave_out((ZERO, "aio"), "aio at the top level holds")
    else:
        config["aio"] = zero.pop("aio")
        log.add((ZERO, "aio"), "moved to the top level", "DeepSpeed reads it only there, and refuses it here")


def _renamed(config: ConfigObject, log: ChangeLog) -> None:
    """Keys that got another name inside their block."""
    for path, new in legacy()["renamed"].items():
        name, _, old = path.partition(".")
        log.rename((name, old), new, "DeepSpeed no longer reads the old name")


def _compile(config: ConfigObject, log: ChangeLog) -> None:
    """Keys of torch.compile that DeepSpeed 0.14 read from its file."""
    block = block_at(config, "compile")
    gone = [name for name in legacy()["old_compile"] if name in block]
    for name in gone:
        log.leave_out(("compile", name), legacy()["removed_from_compile"][0])
    if gone and not block:
        del config["compile"]


def _bf16(config: ConfigObject, log: ChangeLog) -> None:
    """bfloat16, and what was copied from the fp16 block."""
    taken = isinstance(config.get("bf16"), dict)
    log.rename(("bfloat16",), "bf16", "the Trainer does not read bfloat16", taken=taken, holds="bf16 beside it holds")
    log.rename(("bf16", "check_overflow"), "check_grad_overflow", "the documentation had it wrong")
    block = block_at(config, "bf16")
    for name in list(block):
        if name in blocks()["fp16"].keys and name not in blocks()["bf16"].keys:
            log.leave_out(("bf16", name), "bf16 has no loss scale; it is a key of fp16")


def _allreduce(config: ConfigObject, log: ChangeLog) -> None:
    for name in FP32_ALLREDUCE:
        if config.get(name) is True and "communication_data_type" not in config:
            what = 'is now "communication_data_type": "fp32"'
            log.replace((name,), "communication_data_type", "fp32", what, "DeepSpeed ignores it")
        else:
            log.leave_out((name,), "DeepSpeed ignores it")


def _optimizer(config: ConfigObject, log: ChangeLog) -> None:
    """Optimizers that are gone, with the parameters that only they had, and max_grad_norm."""
    block, params = block_at(config, "optimizer"), block_at(config, "optimizer", "params")
    name = block.get("type")
    if "max_grad_norm" in params:
        limit = params.pop("max_grad_norm")
        what = "left out" if "gradient_clipping" in config else "moved to gradient_clipping"
        config.setdefault("gradient_clipping", limit)
        log.add(("optimizer", "params", "max_grad_norm"), what, "no optimizer takes it")
    if not isinstance(name, str) or name.lower() not in legacy()["optimizers"]:
        return
    reason, instead = legacy()["optimizers"][name.lower()]
    block["type"] = instead
    log.add(("optimizer", "type"), f"{name} is now {instead}", reason)
    known = optimizer_params()[instead.lower()] or []
    for key in [each for each in params if each not in known]:
        log.leave_out(("optimizer", "params", key), f"{instead} does not take it")


def _scheduler(config: ConfigObject, log: ChangeLog) -> None:
    """A warm-up of no steps: refused since 0.19.6, and taken for two steps before."""
    params = block_at(config, "scheduler", "params")
    steps = params.get("warmup_num_steps")
    whole = isinstance(steps, float) and steps.is_integer() and steps > 0
    if isinstance(steps, int | float) and not isinstance(steps, bool) and (steps == 0 or whole):
        params["warmup_num_steps"] = max(1, int(steps))
        what = f"{shown(steps)} is now {max(1, int(steps))}"
        log.add(("scheduler", "params", "warmup_num_steps"), what, "DeepSpeed 0.19.6 wants a whole number above 0")


class UpgradedConfig(NamedTuple):
    """The new text, and what is different about it."""

    text: str
    changes: tuple[ConfigChange, ...]


def upgrade(text: str, *, file: str = "ds.json") -> UpgradedConfig:
    """Rewrite the keys of older DeepSpeed releases.

    `file` is the text's name in errors. Raises UsageError, with the place, for text that is not a JSON object."""
    try:
        source = read(text)
    except NotJsonError as error:
        raise UsageError(f"{file}:{error.position}: not JSON: {error.message}", fix=error.fix or None) from None
    config = source.value
    if not isinstance(config, dict):
        raise UsageError(f"{file}: not a JSON object", fix="a DeepSpeed config is one object {…}")
    log = ChangeLog(config)
    _text(source, log)
    for step in (
        _removed, _bare_zero, _offload, _zero_keys, _moved_aio, _renamed, _compile, _bf16, _allreduce, _optimizer,
        _scheduler,
    ):  # fmt: skip
        step(config, log)
    if not log.changes:
        return UpgradedConfig(text, ())
    indent = re.search(r"^([ \t]+)\S", text, re.MULTILINE)
    try:
        made = json.dumps(config, indent=indent[1] if indent else 2, ensure_ascii=text.isascii(), allow_nan=False)
    except ValueError:
        raise UsageError(f"{file} holds NaN or a number above 1.8e308", fix="replace it with a finite number") from None
    written = printable(made + "\n")
    return UpgradedConfig(written.replace("\n", "\r\n") if "\r\n" in text else written, tuple(log.changes))


def _text(source: JsonSource, log: ChangeLog) -> None:
    for kind, what in legacy()["not_strict"].items():
        lines = [str(issue.position.line) for issue in source.issues if issue.kind == kind]
        if lines:
            log.changes.append(ConfigChange(f"line {', '.join(lines)}", what, "accelerate reads strict JSON"))
    for duplicate in source.duplicates:
        log.add(duplicate.path, f"the first of two left out (line {duplicate.first.line})", "the last one holds")
