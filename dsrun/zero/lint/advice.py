"""What runs, but not as it is meant: weights that are not saved, offloading that is ignored, memory that is wasted."""

from dsrun.findings.finding import Finding
from dsrun.findings.texts import text_of
from dsrun.messages import Message
from dsrun.models.families import family_of, overflow_in_fp16
from dsrun.zero.generate.presets import FROM_STEPS, GIB, error_after, memory_of_sum, takes_fp32_sum
from dsrun.zero.lint.codes import ConfigFindings
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
    "/dev/shm": "nvme_path_odd.memory",
    "/tmp": "nvme_path_odd.memory_often",
    "/home": "nvme_path_odd.network_often",
    "/nfs": "nvme_path_odd.network",
    "/mnt/nfs": "nvme_path_odd.network",
}


def check_advice(view: ConfigView, report: ConfigFindings) -> None:
    for check in (_gather, _offload, _nvme_paths, _stage_3_only, _buckets, _half, _sums, _defaults):
        check(view, report)


def _gather(view: ConfigView, report: ConfigFindings) -> None:
    gather = view.taken(ZERO, "stage3_gather_16bit_weights_on_model_save")
    old = view.taken(ZERO, "stage3_gather_fp16_weights_on_model_save")
    if view.stage == 3 and gather is not True and old is not True:
        report.add("zero3_no_gather_on_save", view.spelled(ZERO, "stage3_gather_16bit_weights_on_model_save"))


def _offload(view: ConfigView, report: ConfigFindings) -> None:
    stage = view.stage
    optimizer, param = view.offload("offload_optimizer"), view.offload("offload_param")
    if param in ("cpu", "nvme") and stage is not None and stage < 3:
        report.add("offload_needs_stage.param", (ZERO, "offload_param"), stage=stage)
    if optimizer in ("cpu", "nvme") and stage == 0:
        report.add("offload_needs_stage.optimizer", (ZERO, "offload_optimizer"))
    if optimizer == "nvme" and stage in (1, 2):
        report.add("offload_needs_stage.nvme", (ZERO, "offload_optimizer", "device"), stage=stage)
    for what in ("offload_optimizer", "offload_param"):
        if view.offload(what) in ("cpu", "nvme") and view.raw(ZERO, what, "pin_memory") is False:
            report.add("offload_slow.pinned", (ZERO, what, "pin_memory"))
    untouched = view.raw("zero_force_ds_cpu_optimizer") is False
    if optimizer in ("cpu", "nvme") and untouched and not view.has("optimizer"):
        report.add("offload_slow.torch", ("zero_force_ds_cpu_optimizer",))


def _nvme_paths(view: ConfigView, report: ConfigFindings) -> None:
    for what in ("offload_optimizer", "offload_param"):
        path = view.raw(ZERO, what, "nvme_path")
        if not isinstance(path, str) or view.offload(what) != "nvme" or path == AUTO:
            continue
        where = (ZERO, what, "nvme_path")
        odd = next((why for folder, why in ODD_FOLDERS.items() if f"{path}/".startswith(f"{folder}/")), None)
        if not path.startswith("/"):
            report.add("nvme_path_odd.relative", where, path=shown(path))
        elif odd:
            report.add("nvme_path_odd", where, path=path, odd=text_of(odd))


def _stage_3_only(view: ConfigView, report: ConfigFindings) -> None:
    zero = view.raw(ZERO)
    if not isinstance(zero, dict) or view.stage in (3, None):
        return
    for key in zero:
        name = blocks()[ZERO].spellings.get(key)
        if name is None or "deprecated" in blocks()[ZERO].keys[name]:
            continue
        if name.startswith("stage3_"):
            report.add("no_effect", (ZERO, key), stage=view.stage)
        elif name in ONLY_STAGE_3 and view.taken(ZERO, name) not in (False, MISSING, 0, 1):
            report.add("needs_stage", (ZERO, key), stage=view.stage)
    if isinstance(zero.get("offload_optimizer"), dict) and view.taken(f"{ZERO}.offload_optimizer", SUPER) is True:
        report.add("needs_stage", (ZERO, "offload_optimizer", SUPER), stage=view.stage)


def _buckets(view: ConfigView, report: ConfigFindings) -> None:
    if not isinstance(view.raw(ZERO), dict) or not view.stage:
        return
    for name in BUCKETS:
        path = view.spelled(ZERO, name)
        size = view.taken(ZERO, name)
        if not view.has(*path) or not isinstance(size, int) or (name.startswith("stage3_") and view.stage != 3):
            continue
        if size > LARGEST_BUCKET:
            gib = min(size, LARGEST_NUMBER) * HALF_BYTES / GIB
            better = QUOTED_AUTO if name == BUCKETS[0] and view.for_trainer else "200000000"
            report.add("bucket_wastes_memory", path, size=_elements(size), gib=gib, value=better)
        elif 0 < size < SMALLEST_BUCKET:
            report.add("bucket_too_small", path, size=_elements(size))
    path = view.spelled(ZERO, "stage3_param_persistence_threshold")
    kept = view.taken(ZERO, "stage3_param_persistence_threshold")
    if view.stage == 3 and isinstance(kept, int) and kept > LARGEST_PERSISTENT:
        report.add("bucket_wastes_memory.kept", path, kept=_elements(kept))


def _elements(number: int) -> str:
    return f"{number:,}" if number < LARGEST_NUMBER else shown(number)


def _half(view: ConfigView, report: ConfigFindings) -> None:
    if _is_on(view, "fp16") and view.model_type and family_of(view.model_type).overflows_in_fp16:
        overflow = Message(overflow_in_fp16("{family}"), family=view.model_type)
        found = Finding(level="warning", code="t5_fp16", message=overflow, fix=text_of("t5_fp16.bf16"))
        report.put(found, ("fp16", "enabled"))
    if _is_on(view, "bf16") and view.gpu is not None and not view.gpu.has_bf16:
        report.add("bf16_needs_ampere", ("bf16", "enabled"), name=view.gpu.name)


def _sums(view: ConfigView, report: ConfigFindings) -> None:
    """Gradients of many accumulation steps, summed in bf16."""
    steps = view.raw("gradient_accumulation_steps")
    if steps in (MISSING, AUTO) and view.flags is not None:
        steps = view.flags.values.get("gradient_accumulation_steps")
    place = view.offload("offload_optimizer") or "none"
    many = isinstance(steps, int) and steps >= FROM_STEPS
    unset = view.raw("data_types", "grad_accum_dtype") in (MISSING, None)
    if many and unset and _is_on(view, "bf16") and takes_fp32_sum(view.stage or 0, place):
        memory, path = memory_of_sum(None, None, place), ("gradient_accumulation_steps",)
        report.add("bf16_sum", path, steps=steps, error=error_after(steps), memory=memory)


def _is_on(view: ConfigView, name: str) -> bool:
    """Whether the file, or the flag behind its "auto" or missing block, switches the precision on."""
    if view.flags is not None and (view.is_auto(name, "enabled") or not view.has(name)):
        return bool(view.flags.values.get(name))
    return bool(view.precision(name))


def _defaults(view: ConfigView, report: ConfigFindings) -> None:
    """Defaults that moved: gradient_clipping and check_grad_overflow in 0.19.3, pin_memory in 0.19.5."""
    if not view.has("gradient_clipping"):
        path, problem = ("gradient_clipping",), text_of("moved_default.clipping.message")
        if view.for_trainer:
            flag = text_of("moved_default.unreached.no_flag")
            report.add("moved_default.unreached", path, problem=problem, flag=flag, value=QUOTED_AUTO)
        else:
            report.add("moved_default.clipping", path, value="1.0")
    if view.precision("bf16") and view.raw("bf16", "check_grad_overflow") is MISSING:
        report.add("moved_default.overflow", ("bf16",))
    for what in ("offload_optimizer", "offload_param"):
        block = view.raw(ZERO, what)
        if isinstance(block, dict) and view.offload(what) in ("cpu", "nvme") and "pin_memory" not in block:
            report.add("moved_default.pinned", (ZERO, what))
