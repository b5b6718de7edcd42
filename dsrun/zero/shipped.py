"""The ready-made files of ds_configs/, each with the spec it is generated from.

`python -m dsrun.zero.shipped FOLDER` writes them again.
"""

from __future__ import annotations

import sys
from pathlib import Path

from dsrun.zero.generate import generate, render
from dsrun.zero.spec import ZeroSpec, from_offload

NVME_EXAMPLE = "/local_nvme"

SHIPPED: dict[str, ZeroSpec] = {
    "zero1.json": from_offload(1, "none"),
    "zero2.json": from_offload(2, "none"),
    "zero2_offload.json": from_offload(2, "cpu"),
    "zero3.json": from_offload(3, "none"),
    "zero3_offload.json": from_offload(3, "cpu"),
    "zero3_nvme.json": from_offload(3, "nvme", NVME_EXAMPLE),
}


def write_all(folder: Path) -> None:
    """Write every shipped configuration into `folder`."""
    for name, spec in SHIPPED.items():
        (folder / name).write_text(render(generate(spec)))


if __name__ == "__main__":
    write_all(Path(sys.argv[1]))
