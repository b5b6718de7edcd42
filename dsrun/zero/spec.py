"""ZeroSpec: which ZeRO a run asks for."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Offload = Literal["none", "cpu", "nvme"]


@dataclass(frozen=True, kw_only=True)
class ZeroSpec:
    """A ZeRO stage and where its states live.

    `stage` is 0 to 3. `offload_optimizer` and `offload_param` say where the optimizer's and, under stage 3, the
    parameters' shards are kept. `own_optimizer` leaves the choice of the optimizer to the Trainer's --optim.
    """

    stage: int
    offload_optimizer: Offload = "none"
    offload_param: Offload = "none"
    nvme_path: str | None = None
    own_optimizer: bool = False


def from_offload(
    stage: int, offload: str, nvme_path: str | None = None, *, own_optimizer: bool = False
) -> ZeroSpec:
    """The spec behind `--zero STAGE --offload PLACE`: optimizer states move, and under stage 3 the parameters too."""
    place: Offload = "cpu" if offload == "cpu" else "nvme" if offload == "nvme" else "none"
    return ZeroSpec(
        stage=stage,
        offload_optimizer=place,
        offload_param=place if stage == 3 else "none",
        nvme_path=nvme_path,
        own_optimizer=own_optimizer,
    )
