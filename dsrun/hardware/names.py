"""Taking a GPU's name apart: what the driver prints and what people type, in one comparable form."""

from __future__ import annotations

import re
from dataclasses import dataclass

_DECORATION = re.compile(
    r"\((?:tm|r|nvgpu)\)|[™®]|\b(?:engineering reference )?developer kit\b|\brev\. a\b|-shared$"
    r"|\b(?:nvidia|corporation|grid|generation|gpu|edition|blackwell|lovelace)\b"
)
# The driver's and lspci's words for a laptop's; Max-Q by itself also stands in the name of a workstation card.
_LAPTOP = re.compile(r"with max-?q design|\bmobile / max-q(?: refresh)?$|\bmax-q / mobile$|\bmobile$")
# A line of `nvidia-smi -L`: "GPU 0: NVIDIA A100-SXM4-80GB (UUID: GPU-…)"; lspci: "GA100 [A100 SXM4 80GB] (rev a1)".
_LISTED = re.compile(r"^gpu \d+: *|\(uuid: .*$")
_IN_BRACKETS = re.compile(r"^.*\[(.+)\].*$")
_BRAND = re.compile(r"\b(tesla|geforce|quadro)(?=\b|[^a-z])")
# A MIG instance: "A100-SXM4-80GB MIG 1g.10gb" as NVML has it, also "1g.10gb+me"; "a100_3g.20gb" as SLURM has it.
_MIG = re.compile(r"(?:\bmig\b|(?:^|[ .-])(?:\d+c\.)?\d+g[. -]\d+gb).*$")
# A vGPU profile: "A40-48Q", "A100-4-20C" (MIG-backed), "T4-16Q"; the digits are the share of the memory.
_VGPU = re.compile(r"[- ](?:\d+-)?\d+[abcq](?:me)?$")
# Letters that a vGPU name glues to the model: D twice the memory, X and XM the SXM board, L the NVL card, XL the SXM
# board of H100 with 96 GB, C the P100 card with 12 GB.
_VGPU_BOARD = re.compile(r"^([a-z]\d+)(?:dx|d|xm|xl|x|l|c)$")
_SYSTEM = re.compile(r"nvl(?=\d)\d+")  # "GB200 NVL72" is a rack of GB200
_FORM = re.compile(r"sxm\d?|pcie|nvl")
_MEMORY = re.compile(r"(?<![\d.])(?<!\bt)(\d{1,4}) ?g(?:i?b)?(?![a-z0-9])")  # but T4G is a GPU
_HBM = re.compile(r"\bhbm\d?e?\b")


@dataclass(frozen=True, kw_only=True, slots=True)
class GpuName:
    """A name taken apart.

    `full` is the whole name without decoration, brand included; `model` lacks brand, form and memory. Both
    are lower case without blanks and punctuation. `share` marks a MIG instance or vGPU: only part of the GPU.
    """

    full: str
    model: str
    brand: str | None
    form: str | None
    memory_gib: int | None
    share: bool


def _compact(text: str) -> str:
    return re.sub(r"[^a-z0-9]", "", text)


def take_apart(name: str) -> GpuName:
    """Parse `name` as NVML prints it or as someone types it; every string is accepted."""
    text = " ".join(name.lower().replace("_", " ").split())
    text = _IN_BRACKETS.sub(r"\1", _LISTED.sub("", text))
    virtual = "grid" in text
    text = _LAPTOP.sub("laptop", text)
    text, mig = _MIG.subn("", text)
    text = " ".join(_DECORATION.sub(" ", _SYSTEM.sub("", text)).split())
    text, vgpu = _VGPU.subn("", text)
    brand = _BRAND.search(text)
    rest, form = _take_form(_BRAND.sub("", text))
    rest, memory = _take_memory(_HBM.sub("", rest))
    model = _compact(rest)
    if virtual or vgpu:
        model = _VGPU_BOARD.sub(r"\1", model)
    return GpuName(
        full=_compact(text),
        model=model,
        brand=brand[1] if brand else None,
        form=form,
        memory_gib=memory,
        share=bool(mig or vgpu or virtual),
    )


def _take_form(text: str) -> tuple[str, str | None]:
    found = _FORM.search(text)
    if not found:
        return text, None
    return f"{text[: found.start()]} {text[found.end() :]}", found[0]


def _take_memory(text: str) -> tuple[str, int | None]:
    found = _MEMORY.search(text)
    if not found:
        return text, None
    return f"{text[: found.start()]} {text[found.end() :]}", int(found[1])
