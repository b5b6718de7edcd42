"""A plan as JSON, and as the two commands that follow it: the DeepSpeed configuration, the training run."""

import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from dsrun.datafiles import evaluate, toml_beside
from dsrun.system.terminal.display import size_text
from dsrun.zero.generate.presets import GIB, NVME_PARAM_BUFFER, nvme_buffer
from dsrun.zero.memory import optimizers
from dsrun.zero.memory.model.architecture import training
from dsrun.zero.memory.model.count import CountedModel
from dsrun.zero.memory.plan import MemoryPlan
from dsrun.zero.memory.plan_request import PlanRequest
from dsrun.zero.memory.states import FP32
from dsrun.zero.memory.strategy import PlanCandidate

CONFIG_FILE = "ds.json"
_TABLES = toml_beside(__file__)


@dataclass(frozen=True, kw_only=True)
class CommandOptions:
    """Words of the commands that the plan itself does not depend on, as the user gave them.

    Without `data` the run takes the built-in demo data. `hub` is what `model` is a name on where that is not the usual
    one; `dsrun config` then reads the folder `config`.
    """

    model: str
    data: tuple[str, ...] = ()
    nvme_path: str = "/local_nvme"
    deepspeed: str | None = None
    trained: bool = True
    from_scratch: bool = False
    hub: str | None = None
    config: str | None = None


def config_argv(request: PlanRequest, row: PlanCandidate, options: CommandOptions) -> list[str]:
    """`dsrun config …`, whose output is CONFIG_FILE."""
    size = nvme_buffer(request.model.largest, request.cluster.world)
    more = {"nvme_buffer": size, "usual_buffer": NVME_PARAM_BUFFER, "config_model": options.config or options.model}
    return _words("config", strategy=row.strategy, request=request, options=options, **more)


def train_argv(request: PlanRequest, row: PlanCandidate, options: CommandOptions) -> list[str]:
    """`dsrun train …` for one machine; on several it is started by the scheduler with the same words."""
    names = {
        "request": request, "row": row, "options": options, "strategy": row.strategy, "model": request.model,
        "cluster": request.cluster, "shared": request.sequence_parallel > 1,
        "batch": request.global_batch or row.micro_batch * request.groups,
        "config_file": options.deepspeed or CONFIG_FILE, "usual_optimizer": optimizers.DEFAULT, "fp32": FP32,
    }  # fmt: skip
    return ["dsrun", "train", *_words("stage", **names), *options.data, *_words("train", **names)]


def _words(table: str, **names: Any) -> list[str]:
    rows = (row["words"] for row in _TABLES[table] if evaluate(row.get("when", "True"), names))
    return [word.format_map(names) for words in rows for word in words]


def _start(request: PlanRequest) -> list[str]:
    """What starts a process for each GPU of several nodes: `dsrun train` by itself stays on its machine."""
    nodes, each = request.cluster.nodes, request.cluster.per_node
    if nodes == 1:
        return []
    return ["srun", f"--nodes={nodes}", f"--ntasks-per-node={each}", f"--gpus-per-node={each}"]


def lines(request: PlanRequest, row: PlanCandidate, options: CommandOptions) -> list[str]:
    """Both commands as a shell takes them. Plain DDP and the user's own JSON need none of dsrun's configurations."""
    train = shlex.join([*_start(request), *train_argv(request, row, options)])
    made = (
        []
        if options.deepspeed or row.strategy.stage == 0 or request.sequence_parallel > 1
        else [config_argv(request, row, options)]
    )
    return [*(f"{shlex.join(argv)} > {CONFIG_FILE}" for argv in made), *([train] if options.trained else [])]


VERSION = 1
"""Of the JSON form; docs/plan.md describes it."""


def as_json(plan: MemoryPlan, counted: CountedModel, options: CommandOptions) -> dict[str, Any]:
    """The plan as plain JSON values; memory in bytes."""
    request, model = plan.request, plan.request.model
    names = {
        "request": request, "model": model, "cluster": request.cluster, "options": options, "counted": counted,
        "trainable": training(model, request.lora).trainable, "gib": GIB, "int": int,
    }  # fmt: skip
    return {
        "version": VERSION,
        **_values(_TABLES["json"], names),
        "strategies": [row_as_json(row) for row in plan.rows],
        "choice": None if plan.choice is None else plan.rows.index(plan.choice),
        "why": plan.why,
        "commands": [] if plan.choice is None else lines(request, plan.choice, options),
        "would_fit": list(plan.remedies),
        "findings": [finding.as_dict() for finding in counted.findings],
    }


def row_as_json(row: PlanCandidate) -> dict[str, Any]:
    """One strategy."""
    what, size = obstacle(row)
    names = {
        "row": row, "strategy": row.strategy, "gpu": row.gpu, "states": row.gpu.states, "round": round,
        "fits": row.verdict != "does not fit", "obstacle": what.format(size_text(size)),
    }  # fmt: skip
    return _values(_TABLES["strategy"], names)


def _values(table: Mapping[str, Any], names: Mapping[str, Any]) -> dict[str, Any]:
    """The keys of a table, or of tables within it, with the values of their expressions."""
    return {
        key: _values(each, names) if isinstance(each, dict) else evaluate(each, names) for key, each in table.items()
    }


def obstacle(row: PlanCandidate) -> tuple[str, int]:
    """What is in the way with one sample, {} for its size, and its bytes."""
    if row.host_short:
        return "a node would need {} of host memory", max(row.host, row.host_loading)
    gpu = row.gpu
    parts = {"model states": gpu.states.gpu.total, "activations": gpu.activations.peak, "buffers": gpu.buffers.total}
    largest = max(parts, key=lambda each: parts[each])
    return f"{largest} alone take {{}}", parts[largest]
