"""The three batch sizes, which DeepSpeed computes from one another and from the number of GPUs."""

from collections.abc import Mapping
from typing import Any

from dsrun.findings.finding import text_of
from dsrun.zero.lint.codes import ConfigFindings
from dsrun.zero.schema import shown
from dsrun.zero.view import AUTO, MISSING, ConfigView

TRAIN, MICRO, STEPS = "train_batch_size", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps"
NAMES = (TRAIN, MICRO, STEPS)
FORMULA = f"{TRAIN} = {MICRO} × {STEPS} × GPUs"


def check_batch(view: ConfigView, report: ConfigFindings) -> None:
    """Check the three batch sizes as DeepSpeedConfig._batch_assertion does, as far as they are known."""
    sizes = {name: _size(view, name) for name in NAMES}
    if view.for_trainer and not view.has(STEPS):
        sizes[STEPS] = 1  # DeepSpeedPlugin puts it in
    if sizes[TRAIN] is None and sizes[MICRO] is None:
        report.add("batch_missing", (), train=TRAIN, micro=MICRO, steps=STEPS)
        return
    known = {name: size for name, size in sizes.items() if isinstance(size, int | float)}
    for name, size in known.items():
        if not size > 0:
            report.add("batch_mismatch.positive", (name,), name=name, size=shown(size))
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
        report.add("batch_mismatch.numbers", (_first(sizes),), formula=FORMULA)


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
    """Ranks that read different data: all of them over those that share a sequence; the Trainer counts all."""
    if view.world_size is None or view.for_trainer:
        return view.world_size
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


def _for_world_size(sizes: dict[str, Any], ranks: float, report: ConfigFindings) -> None:
    train, micro, steps = completed(sizes, ranks)
    if micro > 0 and steps > 0 and train == micro * steps * ranks:
        return
    whole = int(ranks) if float(ranks).is_integer() else ranks
    fits = micro > 0 and steps > 0
    leave_out = text_of("batch_mismatch.leave_out", train=TRAIN, size=shown(micro * steps * whole)) if fits else None
    report.add(
        "batch_mismatch",
        (_first(sizes),),
        fix=leave_out or text_of("batch_mismatch.divide", train=TRAIN),
        train=shown(train),
        micro=shown(micro),
        steps=shown(steps),
        whole=whole,
        formula=FORMULA,
    )


def _first(sizes: dict[str, Any]) -> str:
    return next(name for name in NAMES if sizes[name] is not None)


def _for_some_world_size(sizes: dict[str, Any], report: ConfigFindings) -> None:
    """Without a world size: wrong for every one of them, or right for one or a few."""
    train, micro, steps = (sizes[name] for name in NAMES)
    if train is None:
        return
    unit = (micro or 1) * (steps or 1)
    if train % unit:
        product = " × ".join(shown(size) for size in (micro, steps) if size is not None)
        report.add("batch_mismatch.product", (TRAIN,), train=shown(train), product=product or 1, formula=FORMULA)
        return
    ranks = train // unit
    if micro is not None and steps is not None:
        report.add("batch_world_size", (TRAIN,), ranks=shown(ranks))
    elif ranks != 1:
        report.add("batch_world_size.divides", (TRAIN,), ranks=shown(ranks))
