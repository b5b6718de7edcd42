"""Two real steps at a plan's chosen point, on this machine: predicted against measured."""

import json
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from dsrun.errors import MissingError, ToolError, UsageError
from dsrun.machine.gpus import LocalGpu, visible_gpus
from dsrun.models.folder import FoundModel
from dsrun.refusals import Refusals
from dsrun.runs.folder import RunFolder
from dsrun.runs.records import read_records
from dsrun.system.host import cores, require_training_packages
from dsrun.system.process.proc import capture
from dsrun.system.process.scratch import scratch_folder
from dsrun.zero.generate.presets import GIB
from dsrun.zero.memory.calibration import MemoryComparison, resident, save
from dsrun.zero.memory.peak import gpu
from dsrun.zero.memory.plan import MemoryPlan
from dsrun.zero.memory.plan_request import GpuCluster
from dsrun.zero.memory.plan_text import CommandOptions, train_argv
from dsrun.zero.memory.strategy import PlanCandidate

_TEXTS = Refusals(__file__, "refusals.toml")
STEPS = 2
SECONDS = 3600.0
CPU_MICRO_BATCH = 4
RUN = "run"
NVME_PATH = "/local_nvme"
SAME_SIZE = 0.15
"""Share by which a GPU's memory may be below its nominal size: ECC and the driver take some, and GB are no GiB."""
WORD = "four "
"""Repeated to the length asked for; every tokenizer makes at least one token of it."""


def calibrate(
    made: MemoryPlan, found: FoundModel, nvme_path: str = NVME_PATH, *, notify: Callable[[str], None]
) -> MemoryComparison:
    """Train STEPS steps of random weights and compare the peak with the plan's figure.

    On a machine with the plan's GPUs the ratio is kept for later plans; without any GPU the resident memory of CPU
    ranks is compared, and nothing is kept. Raises UsageError when this machine is not the one planned for."""
    require_training_packages()
    row, request = made.choice, made.request
    if row is None:
        raise UsageError("nothing fits, so there is nothing to calibrate")
    gpus = visible_gpus()
    _TEXTS.check("gpus", gpus=gpus, count=len(gpus), cluster=request.cluster)
    other = next((each for each in gpus if is_another(each, request.cluster)), None)
    _TEXTS.check("kind", other=other, cluster=request.cluster)
    if not gpus:
        made, row = _on_cpu(made, row)
    with scratch_folder("dsrun-calibrate-") as scratch:
        argv = training_argv(made, row, found, Path(scratch), nvme_path=nvme_path, on_gpu=bool(gpus))
        records = _train(argv, Path(scratch))
    return compare(made, row, found, records, on_gpu=bool(gpus), notify=notify)


def is_another(here: LocalGpu, planned: GpuCluster) -> bool:
    """Whether a GPU is of another architecture than those planned for, or smaller."""
    if here.capability is not None and planned.model.capability not in ((0, 0), here.capability):
        return True
    size = planned.memory if here.memory_total is None else here.memory_total / GIB
    return size < (1 - SAME_SIZE) * planned.memory


def _on_cpu(made: MemoryPlan, row: PlanCandidate) -> tuple[MemoryPlan, PlanCandidate]:
    """The same strategy on as many ranks as there are cores, with a micro batch a CPU gets through."""
    request = made.request
    ranks = min(request.cluster.per_node, cores())
    small = replace(row, micro_batch=min(row.micro_batch, CPU_MICRO_BATCH))
    on_one_node = replace(request, cluster=request.cluster.with_nodes(1, ranks), global_batch=None)
    return replace(made, request=on_one_node), small


def training_argv(
    made: MemoryPlan, row: PlanCandidate, found: FoundModel, scratch: Path, *, nvme_path: str, on_gpu: bool
) -> list[str]:
    """The words after `dsrun train` for the two steps; writes the data they are taken with into `scratch`."""
    request = made.request
    data = scratch / "train.jsonl"
    samples = row.micro_batch * request.cluster.world * STEPS
    long = WORD * max(request.length, request.source_length)
    text = {"source": long, "target": long} if request.model.seq2seq else {"text": long}
    data.write_text("".join(json.dumps(text) + "\n" for _ in range(samples)))
    options = CommandOptions(model=str(found.folder), data=("--train-file", str(data)))
    strategy = row.strategy
    # One micro batch per step is enough: accumulation does not change the peak but for ZeRO-1's gradients.
    argv = train_argv(replace(request, global_batch=None), row, options)[2:]
    if strategy.stage:
        place = argv.index("--deepspeed")
        argv[place : place + 2] = ["--zero", str(strategy.stage), "--offload", strategy.offload]
    if strategy.offload == "nvme":
        argv += ["--nvme-path", nvme_path]
    argv += ["--from-scratch", "--max-steps", str(STEPS), "--save-strategy", "no", "--logging-steps", "1"]
    argv.append("--force")  # the tokenizer need not know the word
    return [*argv, "--output", str(scratch / RUN), *([] if on_gpu else ["--use-cpu"])]


def _train(argv: list[str], scratch: Path) -> list[dict[str, Any]]:
    done = capture([sys.executable, "-m", "dsrun", "train", *argv], seconds=SECONDS)
    if done.returncode:
        last = (done.stderr.strip().splitlines() or ["no output"])[-1]
        raise ToolError(f"the two steps failed: {last}")
    return [record for record in read_records(RunFolder(scratch / RUN).metrics) if "host_memory" in record]


def compare(
    made: MemoryPlan,
    row: PlanCandidate,
    found: FoundModel,
    records: list[dict[str, Any]],
    *,
    on_gpu: bool,
    notify: Callable[[str], None],
) -> MemoryComparison:
    """What the steps' records say was taken, beside the prediction; on GPUs their ratio is kept for later plans."""
    plain = replace(made.request, factor=1.0)
    if not records:
        raise MissingError("the two steps left no memory figures in metrics.jsonl")
    if not on_gpu:
        measured = max(int(each.get("host_memory_peak", each["host_memory"])) for each in records)
        predicted = resident(plain, row.strategy, row.micro_batch)
        return MemoryComparison(what="a CPU rank", predicted=predicted, measured=measured, saved=None)
    peak = gpu(plain, row.strategy, row.micro_batch)
    measured = max(int(each["gpu_memory_peak"]) for each in records) + peak.buffers.context
    saved = None
    try:
        saved = save(found.config, plain, peak.total, measured)
    except OSError as error:  # the figures took minutes, and are worth knowing without it
        notify(f"the correction cannot be kept for later plans: {error}")
    return MemoryComparison(what="a GPU", predicted=peak.total, measured=measured, saved=saved)
