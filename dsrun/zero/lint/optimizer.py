"""The optimizer and scheduler blocks: names, parameters, and warm-ups that do not do what they seem to."""

from collections.abc import Iterable
from typing import Any

from dsrun.findings.finding import Level
from dsrun.findings.texts import text_of
from dsrun.messages import Message, suggestion
from dsrun.zero.lint.codes import ConfigFindings
from dsrun.zero.lint.source import finite
from dsrun.zero.schema import legacy, optimizer_params, own_schedulers, schedulers, shown, torch_optimizers
from dsrun.zero.view import AUTO, MISSING, ConfigView

# deepspeed.runtime.zero.utils.ZERO_SUPPORTED_OPTIMIZERS; the mu… ones are torch's Adam underneath.
TESTED = ("adam", "adamw", "adagrad", "lion", "muon", "muadam", "muadamw")
TESTED_OF_TORCH = ("Adam", "AdamW", "Adagrad")
NEEDS_MUP = ("muadam", "muadamw", "musgd")
RATES = ("lr", "eps", "weight_decay")
PARAMS = ("optimizer", "params")
SCHEDULE = ("scheduler", "params")


def check_optimizer(view: ConfigView, report: ConfigFindings) -> None:
    block = view.raw("optimizer")
    if not isinstance(block, dict):
        return
    name = block.get("type")
    if name is None:
        level: Level = "error" if view.for_trainer else "warning"
        report.add("optimizer_needs.type", ("optimizer",), level=level)
    elif isinstance(name, str) and not (view.for_trainer and name == AUTO):
        _name(name, view, report)
        params = block.get("params")
        if isinstance(params, dict):
            _params(name, params, view, report)


def _name(name: str, view: ConfigView, report: ConfigFindings) -> None:
    path, own = ("optimizer", "type"), name.lower() in optimizer_params()
    if not own and name not in torch_optimizers():
        gone = legacy()["optimizers"].get(name.lower())
        known = ["Adam", "AdamW", "Adagrad", "Lamb", "Lion", "Muon", *torch_optimizers()]
        problem = text_of("unknown_optimizer.none", name=name)
        if gone:
            fix = text_of("unknown_optimizer.gone", name=gone[1])
            problem = text_of("unknown_optimizer.why", problem=problem, reason=Message(gone[0]))
        else:
            fix = suggestion(name, known, text_of("unknown_optimizer.otherwise"))
        report.add("unknown_optimizer", path, fix=fix, problem=problem)
        return
    tested = name.lower() in TESTED if own else name in TESTED_OF_TORCH
    # DeepSpeed takes the value as it is: every text is true.
    if not tested and view.stage and not view.value("zero_allow_untested_optimizer"):
        report.add("untested_optimizer", path, name=name)
    if name.lower() in NEEDS_MUP:
        report.add("optimizer_needs.mup", path, name=name)


def _params(name: str, params: dict[str, Any], view: ConfigView, report: ConfigFindings) -> None:
    own = name.lower() in optimizer_params()
    known = optimizer_params()[name.lower()] if own else list(torch_optimizers().get(name, ())) or None
    for key in params:
        if known is not None and key not in known and key != "max_grad_norm":
            # _muon_param_groups looks up what it knows, where the other optimizers are handed everything.
            wrong = "optimizer_param.ignored" if name.lower() == "muon" else "optimizer_param.unknown"
            report.add(wrong, (*PARAMS, key), fix=_taken(key, known), name=name)
    if "max_grad_norm" in params:
        report.add("optimizer_param.max_grad_norm", (*PARAMS, "max_grad_norm"))
    for key in RATES:
        value = params.get(key, MISSING)
        if value is not MISSING and not _filled(value, view) and not isinstance(value, int | float):
            if key == "eps" and isinstance(value, list):  # Adafactor takes a pair
                continue
            number = finite(value)
            fix = None if number is None else text_of("repair.unquoted_number", value=number)
            report.add("optimizer_param.number", (*PARAMS, key), fix=fix, value=shown(value))
    betas = params.get("betas", MISSING)
    if betas is not MISSING and not _filled(betas, view) and not _two_betas(betas):
        report.add("optimizer_param.betas", (*PARAMS, "betas"), betas=shown(betas))


def _taken(key: str, known: Iterable[str]) -> Message:
    return suggestion(key, known, text_of("repair.takes", names=", ".join(known)))


def _filled(value: Any, view: ConfigView) -> bool:
    """An "auto" is the Trainer's business, and a text without it."""
    return view.for_trainer and bool(value == AUTO)


def _two_betas(betas: Any) -> bool:
    return isinstance(betas, list) and len(betas) == 2 and all(isinstance(b, int | float) and 0 <= b < 1 for b in betas)


def check_scheduler(view: ConfigView, report: ConfigFindings) -> None:
    block = view.raw("scheduler")
    if not isinstance(block, dict) or block.get("type") is None:
        return
    name, params = block["type"], block.get("params")
    if view.for_trainer and name == AUTO:
        return
    known = schedulers().get(name) if isinstance(name, str) else None
    if known is None:
        fix = suggestion(str(name), schedulers(), text_of("unknown_scheduler.have", names=", ".join(own_schedulers())))
        report.add("unknown_scheduler", ("scheduler", "type"), fix=fix, name=shown(name))
        return
    if name not in own_schedulers() and view.stage:
        # torch's classes test isinstance(optimizer, Optimizer), which ZeRO's are not.
        report.add("unknown_scheduler.torch", ("scheduler", "type"), name=name)
        return
    if not isinstance(params, dict):
        report.add("scheduler_param.none", ("scheduler",), name=name)
        return
    for key in params:
        if key not in known:
            report.add("scheduler_param.unknown", (*SCHEDULE, key), fix=_taken(key, known), name=name)
    for key, required in known.items():
        if required and key not in params:
            report.add("scheduler_param.missing", SCHEDULE, name=name, key=key)
    if str(name).startswith("Warmup"):
        _warmup(str(name), params, view, report)


def _warmup(name: str, params: dict[str, Any], view: ConfigView, report: ConfigFindings) -> None:
    """Where a warm-up fails, and where it quietly trains at another rate (deepspeed.runtime.lr_schedules)."""
    steps, total = params.get("warmup_num_steps", 1000), params.get("total_num_steps", MISSING)
    if not _filled(steps, view) and (not isinstance(steps, int) or steps <= 0):
        report.add("scheduler_warmup.steps", (*SCHEDULE, "warmup_num_steps"), steps=shown(steps))
    for key in ("warmup_min_lr", "warmup_max_lr", "total_num_steps"):
        value = params.get(key, 0)
        allowed = (
            isinstance(value, int | float | list) or _filled(value, view) or (key == "warmup_max_lr" and value is None)
        )
        if not allowed:
            report.add("scheduler_warmup.number", (*SCHEDULE, key), value=shown(value))
    if isinstance(total, int | float) and isinstance(steps, int | float) and total < steps:
        path = (*SCHEDULE, "warmup_num_steps") if "warmup_num_steps" in params else (*SCHEDULE, "total_num_steps")
        report.add("scheduler_warmup.long", path, steps=shown(steps), total=shown(total))
    if params.get("warmup_type", "log") not in ("log", "linear"):
        report.add("scheduler_warmup.type", (*SCHEDULE, "warmup_type"), warmup_type=shown(params["warmup_type"]))
    _peak(name, params, view, report)


def _peak(name: str, params: dict[str, Any], view: ConfigView, report: ConfigFindings) -> None:
    """WarmupLR and WarmupDecayLR write warmup_max_lr over the optimizer's lr; WarmupDecayLR's default is 0.001."""
    if name == "WarmupCosineLR":
        return
    peak, lr = params.get("warmup_max_lr", MISSING), view.raw("optimizer", "params", "lr")
    if peak is MISSING and name == "WarmupDecayLR":
        rate = '"auto"' if view.for_trainer else shown(lr) if isinstance(lr, int | float) else "…"
        report.add("scheduler_warmup.default_peak", SCHEDULE, rate=rate)
    at_peak = (*SCHEDULE, "warmup_max_lr")
    if isinstance(peak, int | float) and isinstance(lr, int | float) and peak != lr:
        report.add("scheduler_warmup.peak", at_peak, peak=shown(peak), lr=shown(lr))
    if isinstance(peak, int | float) and lr == AUTO:
        report.add("scheduler_warmup.follows", at_peak, peak=shown(peak))
    low = params.get("warmup_min_lr", 0)
    if isinstance(peak, int | float) and isinstance(low, int | float) and low > peak:
        report.add("scheduler_warmup.down", (*SCHEDULE, "warmup_min_lr"), low=shown(low), peak=shown(peak))
