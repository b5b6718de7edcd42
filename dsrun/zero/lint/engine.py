"""What DeepSpeed reads without a word and then fails on: when it builds the engine, or in the first steps.

Each of these was seen on a real engine (tests/integration/test_lint_engines.py); the comments name the place.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dsrun.findings import Message
from dsrun.zero.lint.codes import Findings
from dsrun.zero.schema import blocks, nearest, shown
from dsrun.zero.view import AUTO, MISSING, ZERO, ConfigView

LATE = Message("DeepSpeed stops when it builds the engine")
LOG_LEVELS = ("debug", "info", "warning", "error", "critical")


def check_engine(view: ConfigView, report: Findings) -> None:
    """Errors that come after reading."""
    for check in (_numbers, _log_level, _dtypes, _clipping, _stages, _nvme, _zenflow):
        check(view, report)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float)


def _numbers(view: ConfigView, report: Findings) -> None:
    """Keys that DeepSpeed computes with."""
    clipping = view.raw("gradient_clipping")
    filled = view.for_trainer and clipping == AUTO
    if clipping is not MISSING and not _is_number(clipping) and not filled:
        message = Message(
            "gradient_clipping is {clipping}, not a number: the first step fails", clipping=shown(clipping)
        )
        report.error("breaks_later", ("gradient_clipping",), message, Message('write "gradient_clipping": 1.0'))
    # Under the Trainer accelerate sets steps_per_print to infinity.
    steps = view.raw("steps_per_print")
    odd = steps not in (MISSING, None) and (not _is_number(steps) or not steps)
    if odd and not view.for_trainer:
        message = Message("steps_per_print is {steps}, not a number above 0: the first step fails", steps=shown(steps))
        report.error("breaks_later", ("steps_per_print",), message, Message("write null to print nothing"))
    shared = view.raw("sequence_parallel_size")
    if shared is not MISSING and (not _is_number(shared) or shared <= 0):
        message = Message(
            "sequence_parallel_size is {shared}, and DeepSpeed divides the number of ranks by it", shared=shown(shared)
        )
        report.error("breaks_later", ("sequence_parallel_size",), message)
    step = view.raw("flops_profiler", "profile_step")
    if view.raw("flops_profiler", "enabled") is True and step is not MISSING and not _is_number(step):
        message = Message("profile_step is {step}, not a number: the first step fails", step=shown(step))
        report.error("breaks_later", ("flops_profiler", "profile_step"), message)


def _log_level(view: ConfigView, report: Findings) -> None:
    """deepspeed.utils.logging.set_log_level_from_string."""
    level = view.raw("log_level")
    if level in (MISSING, None) or (view.for_trainer and level == AUTO):
        return
    if not isinstance(level, str) or level.lower() not in LOG_LEVELS:
        match = nearest(str(level), LOG_LEVELS)
        message = Message(
            "log_level is {level}, not one of {log_levels}: {late}",
            level=shown(level),
            log_levels=", ".join(LOG_LEVELS),
            late=LATE,
        )
        report.error(
            "breaks_later", ("log_level",), message, Message('did you mean "{match}"?', match=match) if match else ""
        )


def _dtypes(view: ConfigView, report: Findings) -> None:
    """DtypeEnum in DeepSpeedEngine.get_data_types, and the mixes that it refuses without ZeRO."""
    known = blocks()["torch_autocast"].keys["dtype"]["choices"]
    for name in ("grad_accum_dtype", "param_dtype"):
        value, path = view.raw("data_types", name), ("data_types", name)
        if value in (MISSING, None) or (view.for_trainer and value == AUTO):
            continue
        if not isinstance(value, str) or value not in known:
            fix = Message("write fp32, bf16 or fp16, or leave it out")
            report.error(
                "breaks_later",
                path,
                Message("{name} is {value}, which is not a dtype: {late}", name=name, value=shown(value), late=LATE),
                fix,
            )
    _param_dtype(view, report)
    accumulated = _family(view.raw("data_types", "grad_accum_dtype"))
    model = "bf16" if view.precision("bf16") else "fp16" if view.precision("fp16") else None
    if view.stage == 0 and accumulated and model and accumulated != model and not view.has("torch_autocast"):
        path = ("data_types", "grad_accum_dtype")
        message = Message(
            "without ZeRO a {model} model cannot add up its gradients in {accumulated}: {late}",
            model=model,
            accumulated=accumulated,
            late=LATE,
        )
        report.error("breaks_later", path, message, Message('use "zero_optimization": {"stage": 1}'))


def _param_dtype(view: ConfigView, report: Findings) -> None:
    """DeepSpeedEngine._assert_valid_mixed_precision_config: it has to say what fp16 and bf16 say."""
    requested = _family(view.raw("data_types", "param_dtype"))
    fp16, bf16 = view.precision("fp16"), view.precision("bf16")
    if requested is None or fp16 is None or bf16 is None:
        return
    model = "fp16" if fp16 else "bf16" if bf16 else "fp32"
    if requested != model:
        path = ("data_types", "param_dtype")
        message = Message(
            "param_dtype is {requested}, but the model trains in {model}: {late}",
            requested=requested,
            model=model,
            late=LATE,
        )
        report.error("breaks_later", path, message, Message('leave it out, or write "{model}"', model=model))


def _family(dtype: Any) -> str | None:
    """fp16, bf16 or fp32 for any of a dtype's names."""
    names = {"half": "fp16", "float16": "fp16", "bfloat16": "bf16", "float": "fp32", "float32": "fp32"}
    word = str(dtype).removeprefix("torch.")
    return names.get(word, word if word in ("fp16", "bf16", "fp32") else None)


def _clipping(view: ConfigView, report: Findings) -> None:
    """compute_grad_norm=false requires gradient_clipping=0 (DeepSpeedZeroOptimizer)."""
    clipping = view.raw("gradient_clipping")
    known = 1.0 if clipping is MISSING else clipping
    if view.stage in (1, 2) and view.taken(ZERO, "compute_grad_norm") is False and _is_number(known) and known > 0:
        path = view.spelled(ZERO, "compute_grad_norm")
        message = Message(
            "compute_grad_norm: false goes with gradient_clipping 0 only, not {known}: {late}",
            known=shown(known),
            late=LATE,
        )
        report.error("breaks_later", path, message, Message('write "gradient_clipping": 0'))


def _stages(view: ConfigView, report: Findings) -> None:
    """Switches that the engine refuses at some stages."""
    stage = view.stage
    if isinstance(view.raw(ZERO), dict) and stage and view.taken(ZERO, "legacy_stage1") is True:
        report.error(
            "breaks_later",
            (ZERO, "legacy_stage1"),
            Message("legacy_stage1 was removed: {late}", late=LATE),
            Message("leave it out"),
        )
    managed = view.raw("managed_gradient_accumulation")
    overlap = isinstance(view.raw(ZERO), dict) and view.taken(ZERO, "overlap_comm") is True
    if managed is False and stage in (0, 1) and overlap:
        path = ("managed_gradient_accumulation",)
        report.error("breaks_later", path, Message("false goes with overlap_comm at stage 2 only: {late}", late=LATE))


def _nvme(view: ConfigView, report: Findings) -> None:
    """Stage 3 joins the path of the swap folder without asking whether there is one."""
    for what in ("offload_optimizer", "offload_param"):
        if view.stage != 3 or view.offload(what) != "nvme":
            continue
        if view.taken(f"{ZERO}.{what}", "nvme_path") in (None, "none"):
            message = Message("{what} goes to NVMe, but has no folder there: {late}", what=what, late=LATE)
            report.error("nvme_path_missing", (ZERO, what), message, Message('add "nvme_path": "/local_nvme"'))


def _zenflow(view: ConfigView, report: Findings) -> None:
    """ZenFlow lives in the optimizer that runs on the host."""
    zenflow = view.raw(ZERO, "zenflow")
    if isinstance(zenflow, dict) and view.stage in (1, 2) and view.offload("offload_optimizer") == "none":
        message = Message("zenflow needs an offloaded optimizer: {late}", late=LATE)
        report.error("breaks_later", (ZERO, "zenflow"), message, Message('add "offload_optimizer": {"device": "cpu"}'))


TRAIN, MICRO, STEPS = "train_batch_size", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps"
NAMES = (TRAIN, MICRO, STEPS)
FORMULA = f"{TRAIN} = {MICRO} × {STEPS} × GPUs"


def check_batch(view: ConfigView, report: Findings) -> None:
    """Check the three batch sizes as DeepSpeedConfig._batch_assertion does, as far as they are known."""
    sizes = {name: _size(view, name) for name in NAMES}
    if view.for_trainer and not view.has(STEPS):
        sizes[STEPS] = 1  # DeepSpeedPlugin puts it in
    if sizes[TRAIN] is None and sizes[MICRO] is None:
        report.error(
            "batch_missing",
            (),
            Message(
                "neither {train} nor {micro} is given: DeepSpeed stops when it reads the file", train=TRAIN, micro=MICRO
            ),
            Message(
                'add "{micro}": "auto", "{steps}": "auto" and "{train}": "auto", or numbers',
                micro=MICRO,
                steps=STEPS,
                train=TRAIN,
            ),
        )
        return
    known = {name: size for name, size in sizes.items() if isinstance(size, int | float)}
    for name, size in known.items():
        if not size > 0:
            report.error(
                "batch_mismatch",
                (name,),
                Message("{name} is {size}; it has to be positive", name=name, size=shown(size)),
            )
            return
    if len(known) < sum(size is not None for size in sizes.values()):
        return  # the Trainer fills the rest from its flags, or a wrong type is reported already
    ranks = _data_parallel(view)
    try:
        if ranks is None:
            _for_some_world_size(sizes, report)
        else:
            _for_world_size(sizes, ranks, report)
    except ArithmeticError:
        # Fractions beside whole numbers that no float holds, on which DeepSpeed fails as well.
        place = next(name for name in NAMES if sizes[name] is not None)
        report.error(
            "batch_mismatch", (place,), Message("the batch sizes cannot be computed with: {formula}", formula=FORMULA)
        )


def _size(view: ConfigView, name: str) -> Any:
    """A number, None when not given, MISSING when it cannot be known."""
    value = view.raw(name)
    if value is MISSING or value is None:
        return None
    if value == AUTO and view.flags is not None:
        return _filled(view.flags.values, name, view.world_size)
    return value if isinstance(value, int | float) else MISSING


def _filled(flags: Mapping[str, Any], name: str, world_size: int | None) -> Any:
    """What HfTrainerDeepSpeedConfig.trainer_config_process puts for an "auto"."""
    micro, steps = (flags.get(flag, MISSING) for flag in ("per_device_train_batch_size", STEPS))
    if name != TRAIN:
        return micro if name == MICRO else steps
    if "train_batch_size" in flags:
        return flags["train_batch_size"]
    return MISSING if MISSING in (micro, steps) or world_size is None else micro * steps * world_size


def _data_parallel(view: ConfigView) -> float | None:
    """Ranks that read different data: all of them over those that share a sequence."""
    if view.world_size is None:
        return None
    shared = view.raw("sequence_parallel_size")
    return view.world_size / shared if isinstance(shared, int | float) and shared > 0 else view.world_size


def completed(sizes: dict[str, Any], ranks: float) -> tuple[Any, Any, Any]:
    """The three sizes after DeepSpeed has derived those that are not given (_set_batch_related_parameters)."""
    train, micro, steps = (sizes[name] for name in NAMES)
    if train is not None and micro is not None and steps is not None:
        return train, micro, steps
    if train is None:
        steps = 1 if steps is None else steps
        return micro * steps * ranks, micro, steps
    if micro is not None:
        return train, micro, train // micro // ranks
    steps = 1 if steps is None else steps
    return train, train // ranks // steps, steps


def _for_world_size(sizes: dict[str, Any], ranks: float, report: Findings) -> None:
    train, micro, steps = completed(sizes, ranks)
    if micro > 0 and steps > 0 and train == micro * steps * ranks:
        return
    place = next(name for name in NAMES if sizes[name] is not None)
    whole = int(ranks) if float(ranks).is_integer() else ranks
    report.error(
        "batch_mismatch",
        (place,),
        Message(
            "{train} is not {micro} × {steps} × {whole} GPUs: {formula}",
            train=shown(train),
            micro=shown(micro),
            steps=shown(steps),
            whole=whole,
            formula=FORMULA,
        ),
        Message('leave out "{train}", or write {size}', train=TRAIN, size=shown(micro * steps * whole))
        if micro > 0 and steps > 0
        else Message("{train} has to be a multiple of the number of GPUs", train=TRAIN),
    )


def _for_some_world_size(sizes: dict[str, Any], report: Findings) -> None:
    """Without a world size: wrong for every one of them, or right for one or a few."""
    train, micro, steps = (sizes[name] for name in NAMES)
    if train is None:
        return
    unit = (micro or 1) * (steps or 1)
    if train % unit:
        product = " × ".join(shown(size) for size in (micro, steps) if size is not None)
        report.error(
            "batch_mismatch",
            (TRAIN,),
            Message(
                "{train} is not a multiple of {product} on any number of GPUs: {formula}",
                train=shown(train),
                product=product or 1,
                formula=FORMULA,
            ),
        )
        return
    ranks = train // unit
    if micro is not None and steps is not None:
        report.info(
            "batch_world_size",
            (TRAIN,),
            Message("the batch sizes fit {ranks} GPUs and no other number", ranks=shown(ranks)),
        )
    elif ranks != 1:
        report.info(
            "batch_world_size", (TRAIN,), Message("the number of GPUs has to divide {ranks}", ranks=shown(ranks))
        )
