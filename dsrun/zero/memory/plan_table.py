"""A plan as JSON, and as the two commands that follow it: the DeepSpeed configuration, the training run."""

import shlex
from dataclasses import dataclass
from typing import Any

from dsrun.system.terminal.display import size_text
from dsrun.zero.generate.presets import GIB, NVME_PARAM_BUFFER, nvme_buffer
from dsrun.zero.memory import optimizers
from dsrun.zero.memory.model.architecture import training
from dsrun.zero.memory.model.count import CountedModel
from dsrun.zero.memory.plan import MemoryPlan
from dsrun.zero.memory.plan_request import PlanRequest
from dsrun.zero.memory.states import FP32
from dsrun.zero.memory.strategy import PlanCandidate, ZeroStrategy

CONFIG_FILE = "ds.json"
PARAM_BUFFER = "zero_optimization.offload_param.buffer_size"


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
    strategy = row.strategy
    argv = ["dsrun", "config", "--zero", str(strategy.stage)]
    if strategy.offload != "none":
        argv += ["--offload", strategy.offload]
        if strategy.offload == "nvme":
            argv += ["--nvme-path", options.nvme_path]
            size = nvme_buffer(request.model.largest, request.cluster.world)
            if size > NVME_PARAM_BUFFER:
                argv += ["--set", f"{PARAM_BUFFER}={size}"]
    if strategy.bf16_master:
        argv.append("--bf16-master-weights")
    return [*argv, "--precision", request.precision, "--preset", request.preset,
            "--model", options.config or options.model]  # fmt: skip


def train_argv(request: PlanRequest, row: PlanCandidate, options: CommandOptions) -> list[str]:
    """`dsrun train …` for one machine; on several it is started by the scheduler with the same words."""
    strategy = row.strategy
    batch = request.global_batch or row.micro_batch * request.groups
    shared = request.sequence_parallel > 1
    argv = ["dsrun", "train"]
    argv += _stage_argv(strategy, options, shared=shared)
    argv += ["--model", options.model, *(["--hub", options.hub] if options.hub else []), *options.data]
    argv += ["--global-batch-size", str(batch), "--micro-batch-size", str(row.micro_batch)]
    if request.model.seq2seq:
        argv += ["--max-source-length", str(request.source_length), "--max-target-length", str(request.length)]
    elif shared:
        argv += ["--long-context", str(request.length), "--sequence-parallel", str(request.sequence_parallel)]
    else:
        argv += ["--max-length", str(request.length)]
    if request.lora:
        argv += ["--lora", str(request.lora)]
    if options.from_scratch:
        argv.append("--from-scratch")
    if request.optimizer != optimizers.DEFAULT:
        argv += ["--optim", request.optimizer]
    if request.weights != FP32:
        argv += ["--weights-dtype", "bfloat16"]
    if request.chunked_loss:
        argv += ["--use-liger-kernel", "true"]
    if request.attention != "sdpa":
        argv += ["--attn-implementation", {"eager": "eager", "flash": "flash_attention_2"}[request.attention]]
    if strategy.checkpointing:
        argv.append("--gradient-checkpointing")
    argv += {"bf16": ["--bf16"], "fp16": ["--fp16"], "fp32": ["--bf16", "false"]}[request.precision]
    if request.cluster.nodes == 1 and request.cluster.per_node > 1:
        argv += ["--nproc", str(request.cluster.per_node)]
    return argv


def _stage_argv(strategy: ZeroStrategy, options: CommandOptions, *, shared: bool) -> list[str]:
    """--long-context takes no JSON, whose batch size may count every rank."""
    if not shared:
        return ["--zero", "0"] if strategy.stage == 0 else ["--deepspeed", options.deepspeed or CONFIG_FILE]
    place = [] if strategy.offload == "none" else ["--offload", strategy.offload]
    return ["--zero", str(strategy.stage), *place, *(["--nvme-path", options.nvme_path] if "nvme" in place else [])]


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
    cluster = request.cluster
    return {
        "version": VERSION,
        "model": {
            "name": options.model, "type": model.family, "parameters": model.parameters,
            "trainable": training(model, request.lora).trainable, "counted_by": counted.how,
        },
        "cluster": {
            "gpu": cluster.name, "gpu_memory": int(cluster.memory * GIB), "gpus_per_node": cluster.per_node,
            "nodes": cluster.nodes, "host_memory": int(request.host * GIB),
            "host_memory_is_assumed": request.host_memory is None,
        },
        "asked": {
            "preset": request.preset, "budget": int(request.budget), "precision": request.precision,
            "length": request.length, "source_length": request.source_length if model.seq2seq else None,
            "global_batch_size": request.global_batch, "lora": request.lora, "zero": request.stage,
            "offload": request.offload, "micro_batch_size": request.micro_batch, "optim": request.optimizer,
            "weight_bytes": request.weights, "chunked_loss": request.chunked_loss, "attention": request.attention,
            "packed": request.packed, "correction": request.factor,
        },
        "strategies": [row_as_json(row) for row in plan.rows],
        "choice": None if plan.choice is None else plan.rows.index(plan.choice),
        "why": plan.why,
        "commands": [] if plan.choice is None else lines(request, plan.choice, options),
        "would_fit": list(plan.remedies),
        "findings": [finding.as_dict() for finding in counted.findings],
    }  # fmt: skip


def row_as_json(row: PlanCandidate) -> dict[str, Any]:
    """One strategy; `gpu` adds up to `gpu_total` but for what does not meet at the peak."""
    gpu, states = row.gpu, row.gpu.states
    what, size = obstacle(row)
    return {
        "stage": row.strategy.stage,
        "offload": row.strategy.offload,
        "checkpointing": row.strategy.checkpointing,
        "bf16_master_weights": row.strategy.bf16_master,
        "verdict": row.verdict,
        "micro_batch": row.micro_batch,
        "accumulation": row.accumulation,
        "gpu_total": gpu.total,
        "gpu": {
            "states": states.gpu._asdict(),
            "optimizer_step": states.step,
            "activations": gpu.activations.kept,
            "one_layer": gpu.activations.working,
            "logits_and_loss": gpu.activations.logits,
            "buckets": gpu.buffers.buckets,
            "gathered": gpu.buffers.gathered,
            "autocast": gpu.buffers.autocast,
            "context": gpu.buffers.context,
            "fragmentation": gpu.reserve,
        },
        "host_per_node": row.host,
        "host_while_loading": row.host_loading,
        "host_states_per_rank": states.host._asdict(),
        "nvme_per_node": row.nvme,
        "checkpoint": row.checkpoint,
        "relative_speed": None if row.verdict == "does not fit" else round(row.relative, 3),
        "reason": row.reason if row.verdict != "does not fit" else what.format(size_text(size)),
    }


def obstacle(row: PlanCandidate) -> tuple[str, int]:
    """What is in the way with one sample, {} for its size, and its bytes."""
    if row.host_short:
        return "a node would need {} of host memory", max(row.host, row.host_loading)
    gpu = row.gpu
    parts = {"model states": gpu.states.gpu.total, "activations": gpu.activations.peak, "buffers": gpu.buffers.total}
    largest = max(parts, key=lambda each: parts[each])
    return f"{largest} alone take {{}}", parts[largest]
