"""What `--offload PLACE` moves: the optimizer states, and under ZeRO-3 the parameters too."""

from typing import Literal

OffloadDevice = Literal["none", "cpu", "nvme"]
OPTIMIZER_ONLY = "optimizer"
"""--offload optimizer: ZeRO-3 parameters stay on the GPUs."""


def offloaded_to(offload: str) -> OffloadDevice:
    """Where `--offload PLACE` moves the optimizer states."""
    places: dict[str, OffloadDevice] = {"cpu": "cpu", OPTIMIZER_ONLY: "cpu", "nvme": "nvme"}
    return places.get(offload, "none")
