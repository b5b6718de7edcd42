"""The ready-made files of ds_configs/, each with the spec it is generated from and one line about it.

`python -m dsrun.zero.generate.shipped FOLDER` writes them and their README again.
"""

from __future__ import annotations

import sys
from pathlib import Path

from dsrun.zero.generate.config import generate, render
from dsrun.zero.generate.spec import Offload, ZeroSpec

NVME_EXAMPLE = "/local_nvme"


def from_offload(stage: int, offload: str, nvme_path: str | None = None, *, own_optimizer: bool = False) -> ZeroSpec:
    """The spec behind `--zero STAGE --offload PLACE`: optimizer states move, and under stage 3 the parameters too.

    `own_optimizer` leaves the choice of the optimizer to the Trainer's --optim.
    """
    place: Offload = "cpu" if offload == "cpu" else "nvme" if offload == "nvme" else "none"
    return ZeroSpec(
        stage=stage,
        offload_optimizer=place,
        offload_param=place if stage == 3 else "none",
        nvme_path=nvme_path if place == "nvme" else None,
        optimizer="client" if own_optimizer else None,
    )


SHIPPED: dict[str, ZeroSpec] = {
    "zero1.json": from_offload(1, "none"),
    "zero2.json": from_offload(2, "none"),
    "zero2_offload.json": from_offload(2, "cpu"),
    "zero2_bf16_master.json": ZeroSpec(stage=2, bf16_master_weights=True),
    "zero2_muon.json": ZeroSpec(stage=2, optimizer="muon"),
    "zero2_zenflow.json": ZeroSpec(stage=2, offload_optimizer="cpu", zenflow=True),
    "zero3.json": from_offload(3, "none"),
    "zero3_offload.json": from_offload(3, "cpu"),
    "zero3_nvme.json": from_offload(3, "nvme", NVME_EXAMPLE),
    "zero3_conservative.json": ZeroSpec(stage=3, preset="conservative", offload_optimizer="cpu", offload_param="cpu"),
    "zero3_superoffload.json": ZeroSpec(stage=3, precision="bf16", offload_optimizer="cpu", super_offload=True),
    "zero3_zeropp.json": ZeroSpec(stage=3, precision="bf16", hpz=8, qwz=True, qgz=True),
    "zero2_deepspeed.json": ZeroSpec(stage=2, target="deepspeed"),
    "zero3_deepspeed.json": ZeroSpec(stage=3, target="deepspeed"),
}

LINES: dict[str, str] = {
    "zero1.json": "shards optimizer states over the GPUs",
    "zero2.json": "shards optimizer states and gradients: the usual choice when the model fits one GPU",
    "zero2_offload.json": "the same, with optimizer states and the optimizer step in host memory",
    "zero2_bf16_master.json": "master weights and Adam's moments in bf16: half the memory of zero2, less exact",
    "zero2_muon.json": "Muon for matrices, AdamW for the rest",
    "zero2_zenflow.json": "ZenFlow: the GPU steps the important gradients, the CPU the rest, less often",
    "zero3.json": "shards parameters too: for models that do not fit one GPU",
    "zero3_offload.json": "the same, with parameters and optimizer states in host memory",
    "zero3_nvme.json": "the same, on a local NVMe drive; edit `nvme_path`",
    "zero3_conservative.json": "zero3_offload with the smallest buffers: when that does not fit either",
    "zero3_superoffload.json": "SuperOffload: the CPU steps while the backward pass runs (Grace-Hopper and the like)",
    "zero3_zeropp.json": "ZeRO++ for slow networks between nodes of 8 GPUs: hpZ, qwZ and qgZ",
    "zero2_deepspeed.json": "ZeRO-2 without the Trainer: every number written, edit batch size and learning rate",
    "zero3_deepspeed.json": "ZeRO-3 without the Trainer: every number written, edit batch size and learning rate",
}

README = """# Ready-made DeepSpeed configurations

For `deepspeed --deepspeed_config`, `TrainingArguments(deepspeed=...)` or `dsrun train --deepspeed FILE`. Values that
say `"auto"` are filled by the Hugging Face Trainer from its own arguments; `dsrun train --zero N` writes the same
configuration by itself, with bucket sizes that follow the model's width. `dsrun config` makes a file like these for
any other wish, and `dsrun config --explain` says what each key does. Those with bf16 in them want the Trainer's
`--bf16`.

| file | what it does |
| --- | --- |
{rows}

Made by `python -m dsrun.zero.generate.shipped ds_configs`; a test holds files and generator equal.
"""


def readme() -> str:
    """The README.md of ds_configs/."""
    return README.format(rows="\n".join(f"| `{name}` | {LINES[name]} |" for name in SHIPPED))


def listing() -> str:
    """One line for each shipped file, as `dsrun config --list` prints them."""
    width = max(map(len, SHIPPED))
    return "\n".join(f"{name.ljust(width)}  {LINES[name].replace('`', '')}" for name in SHIPPED)


def write_all(folder: Path) -> None:
    """Write every shipped configuration and the README into `folder`."""
    for name, spec in SHIPPED.items():
        (folder / name).write_text(render(generate(spec)))
    (folder / "README.md").write_text(readme())


if __name__ == "__main__":
    write_all(Path(sys.argv[1]))
