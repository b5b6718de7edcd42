"""What runs, but not as it is meant: weights that are not saved, offloading that is ignored, memory that is wasted."""

from __future__ import annotations

from dsrun.messages import Message, joined
from dsrun.models.families import family_of, overflow_in_fp16
from dsrun.zero.generate.accumulation import FROM_STEPS, error_after, memory_of_sum, takes_fp32_sum
from dsrun.zero.generate.presets import GIB
from dsrun.zero.lint.codes import Findings
from dsrun.zero.schema import blocks, shown
from dsrun.zero.view import AUTO, MISSING, ZERO, ConfigView

# DeepSpeed's default of 5e8 elements is the most that any of its examples uses; a bucket that is larger than what
# one collective needs to reach the link's bandwidth (some tens of MB) only costs memory.
LARGEST_BUCKET = 500_000_000
SMALLEST_BUCKET = 1_000_000
# JSON holds whole numbers that no float can, and dividing them fails.
LARGEST_NUMBER = 2**63
HALF_BYTES = 2
BUCKETS = ("reduce_bucket_size", "allgather_bucket_size", "stage3_prefetch_bucket_size")
LARGEST_PERSISTENT = 10_000_000
ONLY_STAGE_3 = ("zero_hpz_partition_size", "zero_quantized_weights", "zero_quantized_nontrainable_weights")
SUPER = "super_offload"
QUOTED_AUTO = '"auto"'
# In memory, swept at boot, or on the network.
ODD_FOLDERS = {
    "/dev/shm": Message("host memory, not a disk"),
    "/tmp": Message("host memory on many clusters"),
    "/home": Message("a network disk on most clusters"),
    "/nfs": Message("a network disk"),
    "/mnt/nfs": Message("a network disk"),
}


def check_advice(view: ConfigView, report: Findings) -> None:
    """Warnings and remarks."""
    for check in (_gather, _offload, _nvme_paths, _stage_3_only, _buckets, _half, _sums, _defaults):
        check(view, report)


def _gather(view: ConfigView, report: Findings) -> None:
    gather = view.taken(ZERO, "stage3_gather_16bit_weights_on_model_save")
    old = view.taken(ZERO, "stage3_gather_fp16_weights_on_model_save")
    if view.stage == 3 and gather is not True and old is not True:
        path = view.spelled(ZERO, "stage3_gather_16bit_weights_on_model_save")
        report.warning(
            "zero3_no_gather_on_save",
            path,
            Message(
                "ZeRO-3 without gathering on save: the Trainer's checkpoints hold no weights that from_pretrained loads"
            ),
            Message('add "stage3_gather_16bit_weights_on_model_save": true to zero_optimization'),
        )


def _offload(view: ConfigView, report: Findings) -> None:
    stage = view.stage
    optimizer, param = view.offload("offload_optimizer"), view.offload("offload_param")
    if param in ("cpu", "nvme") and stage is not None and stage < 3:
        message = Message("offload_param needs stage 3; stage {stage} ignores it", stage=stage)
        report.warning(
            "offload_needs_stage", (ZERO, "offload_param"), message, Message('write "stage": 3, or remove the block')
        )
    if optimizer in ("cpu", "nvme") and stage == 0:
        message = Message("offload_optimizer needs stage 1, 2 or 3; stage 0 ignores it")
        report.warning("offload_needs_stage", (ZERO, "offload_optimizer"), message, Message('write "stage": 2'))
    if optimizer == "nvme" and stage in (1, 2):
        message = Message("stage {stage} takes every device for host memory: nothing goes to NVMe", stage=stage)
        path = (ZERO, "offload_optimizer", "device")
        report.warning("offload_needs_stage", path, message, Message('write "stage": 3, or "device": "cpu"'))
    for what in ("offload_optimizer", "offload_param"):
        if view.offload(what) in ("cpu", "nvme") and view.raw(ZERO, what, "pin_memory") is False:
            message = Message("without pinned memory the copies between host and GPU wait for each other")
            report.info("offload_slow", (ZERO, what, "pin_memory"), message, Message('write "pin_memory": true'))
    untouched = view.raw("zero_force_ds_cpu_optimizer") is False
    if optimizer in ("cpu", "nvme") and untouched and not view.has("optimizer"):
        message = Message(
            "zero_force_ds_cpu_optimizer: false keeps torch's own optimizer, several times slower on the host"
        )
        report.warning(
            "offload_slow", ("zero_force_ds_cpu_optimizer",), message, Message('add "optimizer": {"type": "AdamW", …}')
        )


def _nvme_paths(view: ConfigView, report: Findings) -> None:
    for what in ("offload_optimizer", "offload_param"):
        path = view.raw(ZERO, what, "nvme_path")
        if not isinstance(path, str) or view.offload(what) != "nvme" or path == AUTO:
            continue
        where = (ZERO, what, "nvme_path")
        odd = next((why for folder, why in ODD_FOLDERS.items() if f"{path}/".startswith(f"{folder}/")), None)
        if not path.startswith("/"):
            report.warning(
                "nvme_path_odd",
                where,
                Message("{path} is not an absolute path", path=shown(path)),
                Message("begin it with /"),
            )
        elif odd:
            report.warning(
                "nvme_path_odd",
                where,
                Message("{path} is {odd}", path=path, odd=odd),
                Message("name a folder on a local NVMe disk"),
            )


def _stage_3_only(view: ConfigView, report: Findings) -> None:
    zero = view.raw(ZERO)
    if not isinstance(zero, dict) or view.stage in (3, None):
        return
    for key in zero:
        name = blocks()[ZERO].spellings.get(key)
        if name is None or "deprecated" in blocks()[ZERO].keys[name]:
            continue
        if name.startswith("stage3_"):
            report.info(
                "no_effect",
                (ZERO, key),
                Message("{key} is for stage 3; stage {stage} has no use for it", key=key, stage=view.stage),
            )
        elif name in ONLY_STAGE_3 and view.taken(ZERO, name) not in (False, MISSING, 0, 1):
            report.warning(
                "needs_stage",
                (ZERO, key),
                Message("{key} needs stage 3; stage {stage} ignores it", key=key, stage=view.stage),
            )
    if isinstance(zero.get("offload_optimizer"), dict) and view.taken(f"{ZERO}.offload_optimizer", SUPER) is True:
        message = Message("{key} needs stage 3; stage {stage} ignores it", key=SUPER, stage=view.stage)
        report.warning("needs_stage", (ZERO, "offload_optimizer", SUPER), message)


def _buckets(view: ConfigView, report: Findings) -> None:
    if not isinstance(view.raw(ZERO), dict) or not view.stage:
        return
    for name in BUCKETS:
        path = view.spelled(ZERO, name)
        size = view.taken(ZERO, name)
        if not view.has(*path) or not isinstance(size, int) or (name.startswith("stage3_") and view.stage != 3):
            continue
        if size > LARGEST_BUCKET:
            gib = min(size, LARGEST_NUMBER) * HALF_BYTES / GIB
            message = Message(
                "{key} of {size} elements takes {gib:.1f} GiB (in 16 bit) on every GPU without a gain",
                key=path[-1],
                size=_elements(size),
                gib=gib,
            )
            better = QUOTED_AUTO if name == BUCKETS[0] and view.for_trainer else "200000000"
            fix = Message('write "{key}": {value}', key=path[-1], value=better)
            report.warning("bucket_wastes_memory", path, message, fix)
        elif 0 < size < SMALLEST_BUCKET:
            message = Message(
                "{key} of {size} elements: starting each transfer takes longer than the transfer",
                key=path[-1],
                size=_elements(size),
            )
            report.warning("bucket_too_small", path, message, Message('write "{key}": 50000000 or more', key=path[-1]))
    path = view.spelled(ZERO, "stage3_param_persistence_threshold")
    kept = view.taken(ZERO, "stage3_param_persistence_threshold")
    if view.stage == 3 and isinstance(kept, int) and kept > LARGEST_PERSISTENT:
        message = Message(
            "every parameter of up to {kept} elements stays whole on every GPU: hardly anything is sharded",
            kept=_elements(kept),
        )
        report.warning("bucket_wastes_memory", path, message, Message('write "{key}": 100000', key=path[-1]))


def _elements(number: int) -> str:
    return f"{number:,}" if number < LARGEST_NUMBER else shown(number)


def _half(view: ConfigView, report: Findings) -> None:
    if _is_on(view, "fp16") and view.model_type and family_of(view.model_type).overflows_in_fp16:
        report.warning(
            "t5_fp16",
            ("fp16", "enabled"),
            Message(overflow_in_fp16("{family}"), family=view.model_type),
            Message('use "bf16": {"enabled": true}, or fp32'),
        )
    if _is_on(view, "bf16") and view.gpu is not None and not view.gpu.has_bf16:
        message = Message("{name} has no bf16 arithmetic: it is emulated, or DeepSpeed refuses it", name=view.gpu.name)
        report.warning("bf16_needs_ampere", ("bf16", "enabled"), message, Message("use fp16 (but not for T5), or fp32"))


def _sums(view: ConfigView, report: Findings) -> None:
    """Gradients of many accumulation steps, summed in bf16."""
    steps = view.raw("gradient_accumulation_steps")
    if steps in (MISSING, AUTO) and view.flags is not None:
        steps = view.flags.values.get("gradient_accumulation_steps")
    place = view.offload("offload_optimizer") or "none"
    many = isinstance(steps, int) and steps >= FROM_STEPS
    unset = view.raw("data_types", "grad_accum_dtype") in (MISSING, None)
    if many and unset and _is_on(view, "bf16") and takes_fp32_sum(view.stage or 0, place):
        message = Message(
            "{steps} gradients are summed in bf16, which is off by {error}; fp32 takes {memory}",
            steps=steps,
            error=error_after(steps),
            memory=memory_of_sum(None, None, place),
        )
        fix = Message('add "data_types": {"grad_accum_dtype": "fp32"}')
        report.info("bf16_sum", ("gradient_accumulation_steps",), message, fix)


def _is_on(view: ConfigView, name: str) -> bool:
    """Whether the file, or the flag behind its "auto" or missing block, switches the precision on."""
    if view.flags is not None and (view.is_auto(name, "enabled") or not view.has(name)):
        return bool(view.flags.values.get(name))
    return bool(view.precision(name))


def _defaults(view: ConfigView, report: Findings) -> None:
    """Defaults that moved: gradient_clipping and check_grad_overflow in 0.19.3, pin_memory in 0.19.5."""
    if not view.has("gradient_clipping"):
        message = Message("without gradient_clipping DeepSpeed clips at 1.0 since 0.19.3, and did not clip before")
        if view.for_trainer:
            message = joined("; ", [message, Message("--max_grad_norm does not reach it")])
        fix = Message('add "gradient_clipping": {value}', value=QUOTED_AUTO if view.for_trainer else "1.0")
        report.info("moved_default", ("gradient_clipping",), message, fix)
    if view.precision("bf16") and view.raw("bf16", "check_grad_overflow") is MISSING:
        message = Message("since 0.19.3 bf16 skips steps whose gradients overflow; before it did not look")
        report.info("moved_default", ("bf16",), message, Message('add "check_grad_overflow": true'))
    for what in ("offload_optimizer", "offload_param"):
        block = view.raw(ZERO, what)
        if isinstance(block, dict) and view.offload(what) in ("cpu", "nvme") and "pin_memory" not in block:
            message = Message("pin_memory is true by default since 0.19.5, and was false before")
            report.info("moved_default", (ZERO, what), message, Message('add "pin_memory": true'))
