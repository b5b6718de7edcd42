"""The optimizer and scheduler blocks: their names, and which parameters they take."""

from collections.abc import Iterable
from typing import Any

from dsrun.findings.finding import Level, text_of
from dsrun.messages import Message, suggestion
from dsrun.zero.lint.codes import ConfigFindings
from dsrun.zero.schema import legacy, optimizer_params, own_schedulers, schedulers, shown, torch_optimizers
from dsrun.zero.view import AUTO, ConfigView

# deepspeed.runtime.zero.utils.ZERO_SUPPORTED_OPTIMIZERS; the mu… ones are torch's Adam underneath.
TESTED = ("adam", "adamw", "adagrad", "lion", "muon", "muadam", "muadamw")
TESTED_OF_TORCH = ("Adam", "AdamW", "Adagrad")
NEEDS_MUP = ("muadam", "muadamw", "musgd")
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


def _taken(key: str, known: Iterable[str]) -> Message:
    return suggestion(key, known, text_of("repair.takes", names=", ".join(known)))


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
