"""`dsrun train --zero auto`: the plan's choice for a run, within what the user fixed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dsrun.errors import UsageError
from dsrun.zero.memory.calibration import remembered
from dsrun.zero.memory.model.architecture import Architecture
from dsrun.zero.memory.plan import Chosen, choose
from dsrun.zero.memory.request import USUAL_LENGTH, Cluster, PlanRequest, Switch


def decide(
    config: Mapping[str, Any],
    model: Architecture,
    cluster: Cluster,
    *,
    precision: str,
    length: int | None = None,
    source_length: int | None = None,
    global_batch: int | None = None,
    micro_batch: int | None = None,
    lora: int | None = None,
    checkpointing: bool | None = None,
    offload: str | None = None,
) -> Chosen:
    """Stage, offload, micro batch and recomputation for a run on `cluster`, by the rules of `dsrun plan`.

    `config` is the model's config.json, by which corrections of `dsrun plan --calibrate` are found again.

    What is not None is kept as it is: a given `micro_batch` is one the choice has to take. Lengths are tokens per
    sample, `micro_batch` samples per GPU, `global_batch` samples over all GPUs. Raises UsageError when nothing fits,
    with what would.
    """
    switch: Switch = "auto" if checkpointing is None else "on" if checkpointing else "off"
    usual = min(USUAL_LENGTH, model.positions or USUAL_LENGTH)
    share = None if micro_batch is None else micro_batch * cluster.world
    if micro_batch is not None and global_batch is not None and global_batch % (micro_batch * cluster.world):
        raise UsageError(f"global batch {global_batch} does not divide by {micro_batch} × {cluster.world} GPUs")
    request = PlanRequest(
        model=model,
        cluster=cluster,
        length=length or usual,
        source_length=source_length or usual,
        # One micro batch of the given size per step: the largest that fits is then that or one of its divisors.
        global_batch=share or global_batch,
        lora=lora,
        precision="bf16" if precision == "bf16" else "fp16" if precision == "fp16" else "fp32",
        checkpointing=switch,
    )
    request = request.corrected(remembered(config, request))
    return choose(request, micro_batch=micro_batch, offload=offload)


def settings(chosen: Chosen) -> dict[str, object]:
    """The choice as values of `dsrun train`'s flags."""
    values: dict[str, object] = {"zero": str(chosen.stage), "micro_batch_size": chosen.micro_batch}
    if chosen.offload != "none":
        values["offload"] = chosen.offload
    if chosen.checkpointing:
        values["gradient_checkpointing"] = True
    return values


def words(chosen: Chosen) -> str:
    """What was chosen, in one line for the user."""
    place = "" if chosen.offload == "none" else f" with states on {'NVMe' if chosen.offload == 'nvme' else 'the host'}"
    again = ", recomputing activations" if chosen.checkpointing else ""
    return f"--zero auto: ZeRO-{chosen.stage}{place}, micro batch {chosen.micro_batch}{again} (`dsrun plan` says why)"
