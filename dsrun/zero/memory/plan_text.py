"""A plan as text (what was asked, and a table with a row for each choice, or for each strategy that was planned), as
JSON, and as the two commands that follow it: the DeepSpeed configuration, the training run."""

import shlex
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from dsrun.datafiles import SubjectNames, evaluate, toml_beside
from dsrun.engine_options import offloaded_to
from dsrun.system.terminal.display import size_text
from dsrun.zero.generate.presets import GIB, NVME_PARAM_BUFFER, error_after, memory_of_sum, nvme_buffer
from dsrun.zero.memory.model.architecture import training
from dsrun.zero.memory.model.count import CountedModel
from dsrun.zero.memory.peak import sums_in_fp32
from dsrun.zero.memory.plan import MemoryPlan, described
from dsrun.zero.memory.plan_request import PlanRequest
from dsrun.zero.memory.rank import optimizers
from dsrun.zero.memory.rank.states import FP32
from dsrun.zero.memory.strategy import NEARLY, PlanCandidate

_TABLE = toml_beside(__file__)
CONFIG_FILE = "ds.json"


@dataclass(frozen=True, kw_only=True)
class CommandOptions:
    """Words of the commands that the plan itself does not depend on, as the user gave them.

    Without `data` the run takes the built-in demo data. `hub` is what `model` is a name on where that is not the usual
    one; `dsrun config` then reads the folder `config`."""

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


def python_arguments(request: PlanRequest, row: PlanCandidate, options: CommandOptions) -> str | None:
    """What the stock Trainer or TRL is given for it, as a call in Python; None where dsrun trains."""
    if request.trainer == "dsrun":
        return None
    name = {"hf": "TrainingArguments", "trl": "DPOConfig" if request.rows > 1 else "SFTConfig"}[request.trainer]
    file = options.deepspeed or (CONFIG_FILE if row.strategy.stage else None)
    more = {"usual_optimizer": optimizers.usual_optimizer(request.trainer), "deepspeed": file}
    return f"{name}({', '.join(_words('arguments', request=request, row=row, strategy=row.strategy, **more))})"


def _words(table: str, **names: Any) -> list[str]:
    rows = (row["words"] for row in _TABLE[table] if evaluate(row.get("when", "True"), names))
    return [word.format_map(names) for words in rows for word in words]


def _start(request: PlanRequest) -> list[str]:
    """What starts a process for each GPU of several nodes: `dsrun train` by itself stays on its machine."""
    nodes, each = request.cluster.nodes, request.cluster.per_node
    if nodes == 1:
        return []
    return ["srun", f"--nodes={nodes}", f"--ntasks-per-node={each}", f"--gpus-per-node={each}"]


def command_lines(request: PlanRequest, row: PlanCandidate, options: CommandOptions) -> list[str]:
    """Both commands as a shell takes them; the first where dsrun does not train. Plain DDP and the user's own JSON need
    none of dsrun's configurations."""
    train = shlex.join([*_start(request), *train_argv(request, row, options)])
    made = (
        []
        if options.deepspeed or row.strategy.stage == 0 or request.sequence_parallel > 1
        else [config_argv(request, row, options)]
    )
    return [
        *(f"{shlex.join(argv)} > {CONFIG_FILE}" for argv in made),
        *([train] if options.trained and request.trainer == "dsrun" else []),
    ]


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
        **_values(_TABLE["json"], names),
        "strategies": [row_as_json(row) for row in plan.rows],
        "choice": None if plan.choice is None else plan.rows.index(plan.choice),
        "why": plan.why,
        "commands": [] if plan.choice is None else command_lines(request, plan.choice, options),
        "arguments": plan.choice and python_arguments(request, plan.choice, options),
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
    return _values(_TABLE["strategy"], names)


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


HEADINGS = ("speed", "micro batch", "GiB/GPU", "strategy")
_VERDICTS = ("fits", "tight", "does not fit")


def header(plan: MemoryPlan, counted: CountedModel, options: CommandOptions) -> list[str]:
    """What was asked, in lines."""
    request, model = plan.request, plan.request.model
    trained = training(model, request.lora)
    share = f", {trained.trainable:,} of them in adapters trained" if request.lora else ""
    names = SubjectNames(request, {}, usual_optimizer=optimizers.usual_optimizer(request.trainer), fp32=FP32)
    named = ((text, evaluate(value, names)) for text, value in _TABLE["fixed"])
    fixed = [text.format(value) for text, value in named if value is not None]
    lengths = f"{request.source_length} + {request.length} tokens" if model.seq2seq else f"{request.length} tokens"
    return [
        f"{options.model}: {model.family}, {trained.parameters:,} parameters{share} (by {counted.how})",
        f"{described(request)} in {request.cluster.nodes} node{'s' if request.cluster.nodes > 1 else ''},"
        f" {request.precision}, {lengths} per sample, preset {request.preset}:"
        f" at most {request.budget / GIB:.1f} GiB of each GPU",
        *([f"fixed: {', '.join(fixed)}"] if fixed else []),
    ]


def plan_rows(plan: MemoryPlan, *, every: bool) -> list[tuple[str, ...]]:
    """The table, its heading first: a row for `every` strategy, or the choice and one for all others that a user cannot
    tell apart by their figures, the fastest first."""
    groups: list[list[PlanCandidate]] = [[row] for row in plan.rows] if every else []
    order = sorted(plan.rows, key=lambda row: (row is not plan.choice, _VERDICTS.index(row.verdict), -row.relative))
    for row in () if every else order:
        group = next((each for each in groups if each[0] is not plan.choice and _are_alike(each[0], row)), None)
        if group is None:
            groups.append([row])
        else:
            group.append(row)
    return [HEADINGS, *(_cells(group, plan, every=every) for group in groups)]


def _are_alike(fastest: PlanCandidate, row: PlanCandidate) -> bool:
    """Whether both are equally good, within the error of the estimate, or fail for the same reason."""
    one, other = fastest.strategy, row.strategy
    if fastest.verdict != row.verdict or one.bf16_master != other.bf16_master:
        return False
    if row.verdict == "does not fit":
        return obstacle(fastest)[0] == obstacle(row)[0]
    return one.checkpointing == other.checkpointing and row.relative >= NEARLY * fastest.relative


def _cells(group: Sequence[PlanCandidate], plan: MemoryPlan, *, every: bool) -> tuple[str, ...]:
    first, fits = group[0], group[0].verdict != "does not fit"
    notes = [] if first.verdict == "fits" else ["does not fit" if not fits else "more than the preset allows"]
    if not fits:
        sizes = [obstacle(row)[1] for row in group]
        least = "at least " if size_text(min(sizes)) != size_text(max(sizes)) else ""
        notes.append(obstacle(first)[0].format(least + size_text(min(sizes))))
    elif every:
        notes.append(first.reason)
    if every:
        notes.append(f"{max(first.host, first.host_loading) / GIB:.0f} GiB of host memory per node")
    return (
        f"{max(row.relative for row in group):.2f}" if fits else "-",
        _span([row.micro_batch for row in group], str) if fits else "-",
        _span([row.gpu.total for row in group], lambda size: f"{size / GIB:.{int(size < 9.95 * GIB)}f}"),
        _names(group) + (" (recommended)" if first is plan.choice else "") + (f": {', '.join(notes)}" if notes else ""),
    )


def _names(group: Sequence[PlanCandidate]) -> str:
    """`ZeRO-0 to 3, ZeRO-1 to 2 + cpu, recomputing activations`: the stages of each place of the optimizer states."""
    stages: dict[str, list[int]] = {}
    places = ((row.strategy.stage, row.strategy.offload.replace("none", "")) for row in group)
    for stage, place in sorted(set(places), key=lambda each: each[::-1]):
        stages.setdefault(place and f" + {place}", []).append(stage)
    names = []
    for place, found in stages.items():
        runs = [found] if found[-1] - found[0] < len(found) else [[stage] for stage in found]
        names += [f"ZeRO-{run[0]}{f' to {run[-1]}' if run[1:] else ''}{place}" for run in runs]
    if all(row.strategy.checkpointing for row in group):
        names.append("recomputing activations")
    return ", ".join([*names, *(["bf16 master weights"] if group[0].strategy.bf16_master else [])])


def _span(values: Iterable[float], text: Callable[[float], str]) -> str:
    """`316-317`, or the one text of all values."""
    ordered = sorted(values)
    return "-".join(dict.fromkeys((text(ordered[0]), text(ordered[-1]))))


def exact_sums(request: PlanRequest, row: PlanCandidate) -> str:
    """That gradients are summed in fp32 and what it costs; empty where they are not."""
    if not sums_in_fp32(request, row.strategy, row.micro_batch):
        return ""
    trained = training(request.model, request.lora).trainable
    memory = memory_of_sum(trained, request.cluster.world, offloaded_to(row.strategy.offload))
    error = error_after(row.accumulation)
    return f"gradients of {row.accumulation} steps are summed in fp32, as a bf16 sum is off by {error}: {memory}"


def details(row: PlanCandidate) -> list[tuple[str, int]]:
    """What fills a GPU under the chosen strategy: names and bytes."""
    names = SubjectNames(row.gpu, {})
    parts = [(name, evaluate(size, names)) for name, size in _TABLE["details"].items()]
    return [(name, size) for name, size in parts if size >= GIB / 200]
