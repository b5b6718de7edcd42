"""The two commands that follow a plan: the DeepSpeed configuration, and the training run."""

from __future__ import annotations

import shlex
from dataclasses import dataclass

from dsrun.zero.generate.presets import NVME_PARAM_BUFFER, nvme_buffer
from dsrun.zero.memory.request import PlanRequest
from dsrun.zero.memory.strategy import Candidate

CONFIG_FILE = "ds.json"
PARAM_BUFFER = "zero_optimization.offload_param.buffer_size"


@dataclass(frozen=True, kw_only=True)
class Wording:
    """Words of the commands that the plan itself does not depend on, as the user gave them.

    Without `data` the run takes the built-in demo data.
    """

    model: str
    data: tuple[str, ...] = ()
    nvme_path: str = "/local_nvme"
    from_scratch: bool = False


def config_argv(question: PlanRequest, row: Candidate, words: Wording) -> list[str]:
    """`dsrun config …`, whose output is CONFIG_FILE."""
    strategy = row.strategy
    argv = ["dsrun", "config", "--zero", str(strategy.stage)]
    if strategy.offload != "none":
        argv += ["--offload-optimizer", strategy.offload]
        if strategy.stage == 3:
            argv += ["--offload-param", strategy.offload]
        if strategy.offload == "nvme":
            argv += ["--nvme-path", words.nvme_path]
            size = nvme_buffer(question.model.largest, question.cluster.world)
            if size > NVME_PARAM_BUFFER:
                argv += ["--set", f"{PARAM_BUFFER}={size}"]
    return [*argv, "--precision", question.precision, "--preset", question.preset, "--model", words.model]


def train_argv(question: PlanRequest, row: Candidate, words: Wording) -> list[str]:
    """`dsrun train …` for one machine; on several it is started by the scheduler with the same words."""
    strategy = row.strategy
    world = question.cluster.world
    batch = question.global_batch or row.micro_batch * world
    argv = ["dsrun", "train"]
    argv += ["--zero", "0"] if strategy.stage == 0 else ["--deepspeed", CONFIG_FILE]
    argv += ["--model", words.model, *words.data]
    argv += ["--global-batch-size", str(batch), "--micro-batch-size", str(row.micro_batch)]
    if question.model.seq2seq:
        argv += [
            "--max-source-length",
            str(question.source_length),
            "--max-target-length",
            str(question.length),
        ]
    else:
        argv += ["--max-length", str(question.length)]
    if question.lora:
        argv += ["--lora", str(question.lora)]
    if words.from_scratch:
        argv.append("--from-scratch")
    if question.attention == "eager":
        argv += ["--attn-implementation", "eager"]
    if strategy.checkpointing:
        argv.append("--gradient-checkpointing")
    argv += {"bf16": ["--bf16"], "fp16": ["--fp16"], "fp32": ["--bf16", "false"]}[question.precision]
    if question.cluster.nodes == 1 and question.cluster.per_node > 1:
        argv += ["--nproc", str(question.cluster.per_node)]
    return argv


def _start(question: PlanRequest) -> list[str]:
    """What starts a process for each GPU of several nodes: `dsrun train` by itself stays on its machine."""
    nodes, each = question.cluster.nodes, question.cluster.per_node
    if nodes == 1:
        return []
    return ["srun", f"--nodes={nodes}", f"--ntasks-per-node={each}", f"--gpus-per-node={each}"]


def lines(question: PlanRequest, row: Candidate, words: Wording) -> list[str]:
    """Both commands as a shell takes them; plain DDP needs no configuration."""
    train = shlex.join([*_start(question), *train_argv(question, row, words)])
    if row.strategy.stage == 0:
        return [train]
    return [f"{shlex.join(config_argv(question, row, words))} > {CONFIG_FILE}", train]
