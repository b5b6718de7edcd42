"""What is known about a GPU by its name: a look-up in build/gpus.toml that never guesses."""

import re
from collections.abc import Iterable, Sequence
from functools import cache
from itertools import takewhile
from typing import Any, Literal, NamedTuple, Self

from dsrun.datafiles import data_folder, patterns_beside, read_toml
from dsrun.errors import UsageError, nearest_names
from dsrun.hardware.site import FILE, instance, site_words

_PATTERNS, _OTHERS = patterns_beside(__file__), patterns_beside(__file__, table="others")


class GpuName(NamedTuple):
    """A name taken apart.

    `full` is the whole name without decoration, brand included; `model` lacks brand, form and memory. Both
    are lower case without blanks and punctuation. `share` marks a MIG instance or vGPU: only part of the GPU, of
    `slice_gib` where the name says so."""

    full: str
    model: str
    brand: str | None
    form: str | None
    memory_gib: int | None
    share: bool
    slice_gib: int | None


def _compact(text: str) -> str:
    return re.sub(r"[^a-z0-9]", "", text)


def take_apart(name: str) -> GpuName:
    """Parse `name` as NVML prints it or as someone types it; every string is accepted."""
    text = " ".join(name.lower().replace("_", " ").split())
    text = _PATTERNS["in_brackets"].sub(r"\1", _PATTERNS["listed"].sub("", text))
    virtual = "grid" in text
    text = _PATTERNS["super"].sub(" super", _PATTERNS["glued"].sub(r"\1 ", text))
    text = _PATTERNS["ada_first"].sub(r"\1 ada", _PATTERNS["pro_last"].sub(r"rtx pro \1", text))
    text = _PATTERNS["laptop"].sub("laptop", text)
    size = _PATTERNS["slice"].search(text)
    text, mig = _PATTERNS["mig"].subn("", text)
    text = " ".join(_PATTERNS["decoration"].sub(" ", _PATTERNS["system"].sub("", text)).split())
    text, vgpu = _PATTERNS["vgpu"].subn("", text)
    brand = _PATTERNS["brand"].search(text)
    rest, form = _cut(_PATTERNS["form"], _PATTERNS["brand"].sub("", text))
    rest, memory = _cut(_PATTERNS["memory"], _PATTERNS["hbm"].sub("", rest))
    model = _compact(rest)
    if virtual or vgpu:
        model = _PATTERNS["vgpu_board"].sub(r"\1", model)
    return GpuName(
        full=_compact(text),
        model=model,
        brand=brand[1] if brand else None,
        form=form[0] if form else None,
        memory_gib=int(memory[1]) if memory else None,
        share=bool(mig or vgpu or virtual),
        slice_gib=int(size[1] or size[2]) if size and (mig or vgpu) else None,
    )


def _cut(pattern: re.Pattern[str], text: str) -> tuple[str, re.Match[str] | None]:
    """`text` without what `pattern` finds first, and what that is."""
    return pattern.sub(" ", text, count=1), pattern.search(text)


FactConfidence = Literal["A", "B", "C"]

AMPERE = (8, 0)
"""From this compute capability on, tensor cores compute in bf16 and TF32."""

_BRAND_SEGMENTS = {"tesla": ("datacenter",), "geforce": ("geforce", "titan"), "quadro": ("workstation",)}
# Words that a short name leaves out. "rtx 4000" may mean the Quadro (7.5) or the Ada card (8.9), "rtx 4000 laptop" too.
_UNSAID = ("ada",)
_UNSAID_IF_ALONE = ("laptop", "workstation", "server", "maxqworkstation")
_JETSON_CHIPS = ("xavier", "orin", "thor")


class GpuModel(NamedTuple):
    """One row of the table, or what all rows that a name may mean have in common (the rest is None).

    `memory_gib` in GiB as sold, `usable_gib` where the driver shows clearly less, `unified` where the CPU uses the
    same; `memory_bandwidth_gbs` in 10^9 bytes/s, `bf16_tflops` the dense peak in 10^12 operations/s. `last_cuda` None:
    current toolkits still target it. build/README.md explains every key."""

    name: str
    capability: tuple[int, int]
    segment: str | None = None
    architecture: str | None = None
    chip: str | None = None
    memory_gib: int | None = None
    usable_gib: int | None = None
    unified: bool | None = None
    memory_bandwidth_gbs: float | None = None
    bf16_tflops: float | None = None
    first_cuda: str | None = None
    last_cuda: str | None = None
    pypi_torch_first: str | None = None
    pypi_torch_last: str | None = None
    release_year: int | None = None
    confidence: FactConfidence = "A"
    note: str | None = None
    aliases: tuple[str, ...] = ()

    @property
    def has_bf16(self) -> bool:
        """Whether its tensor cores compute in bf16."""
        return self.capability >= AMPERE

    @property
    def memory(self) -> int | None:
        """GiB that programs have: what the driver shows where that is clearly less than what is sold."""
        return self.usable_gib or self.memory_gib

    def with_memory(self, gib: int | None) -> Self:
        """The same GPU with so many GiB for programs."""
        return self._replace(memory_gib=gib, usable_gib=None)


@cache
def gpu_table() -> tuple[GpuModel, ...]:
    table: list[dict[str, Any]] = []
    for row in read_toml(data_folder("build") / "gpus.toml")["gpu"]:
        capability = tuple(map(int, row["capability"].split(".")))
        table.append({**row, "capability": capability, "aliases": tuple(row.get("aliases", ()))})
    return tuple(GpuModel(**row) for row in table)


@cache
def _parsed_table() -> tuple[tuple[GpuModel, GpuName], ...]:
    return tuple((row, take_apart(row.name)) for row in gpu_table())


@cache
def _exact() -> dict[str, GpuModel]:
    """Rows by full name, then by alias."""
    exact = {name.full: row for row, name in _parsed_table()}
    return exact | {take_apart(alias).full: row for row in gpu_table() for alias in row.aliases}


@cache
def lookup(name: str) -> GpuModel | None:
    """The GPU called `name`, as NVML prints it ("NVIDIA A100-SXM4-80GB") or in short ("a100", "rtx 4090").

    A name that fits several rows gives what they have in common. A number at the end may be the memory in GiB
    ("a100-80"). None: unknown, or the rows differ in their compute capability ("rtx 4000", "titan x"). Rows of
    confidence C (custom and rare parts) count only where nothing better fits. A MIG instance or vGPU has its
    GPU's capability and the memory of its profile, but no peak. A cloud's instance type ("p4d.24xlarge") is its GPU,
    and a word of this site's gpus.toml the GPU it names; UsageError if that is unknown."""
    meant = site_words().get(name.strip().lower())
    found = _of_table(meant or name)
    if meant and found is None:
        wrong = f"{FILE}: {name} is {meant!r}, which is not the name of one kind of GPU"
        raise UsageError(wrong, fix="`dsrun gpus --all` lists the names")
    return found


def _of_table(name: str) -> GpuModel | None:
    if rented := instance(name):
        return lookup(rented.gpu)
    wanted = take_apart(name)
    row = _exact().get(wanted.full)
    found = row if row else _common(meanings(name))
    if found and wanted.share and (wanted.slice_gib or not row):
        return found.with_memory(wanted.slice_gib)._replace(memory_bandwidth_gbs=None, bf16_tflops=None)
    return found


@cache
def meanings(name: str) -> tuple[GpuModel, ...]:
    """Every row that `name` may mean, also where `lookup` says None because they differ; empty: unknown."""
    wanted = take_apart(name)
    rows = _candidates(wanted)
    front, dash, last = " ".join(name.replace("_", " ").split()).replace(" ", "-").rpartition("-")
    if not rows and dash and last.isdigit():
        rows = _candidates(take_apart(f"{front} {last}GB"))
    return tuple(rows)


def memory_sizes(model: GpuModel) -> tuple[int, ...]:
    """GiB of every product that a name may mean, one for each; those of custom parts are left out."""
    if model.memory is not None:
        return (model.memory,)
    rows = [row for row in gpu_table() if f"{row.name} ".startswith(f"{model.name} ") and row.confidence != "C"]
    return tuple(row.memory for row in rows if row.memory)


def unknown_gpu(name: str) -> str:
    """What to say of a name that `lookup` and `meanings` do not know: what it is where that is no NVIDIA GPU."""
    text = re.sub(r"[\s_.]+", " ", name.lower())
    other = next((what for what, pattern in _OTHERS.items() if pattern.search(text)), None)
    return f"{name} is {other}; dsrun builds for CUDA" if other else f"no GPU called {name!r} is known"


def near_names(name: str, count: int = 3) -> list[str]:
    """At most `count` names of the table that `name` resembles, the nearest first."""
    models = {known.model: row.name for row, known in reversed(_parsed_table())}
    wanted = take_apart(name).model
    begun = [model for model in models if len(model) > 2 and wanted.startswith(model)]  # h100smx
    return [models[model] for model in nearest_names(wanted, models, count) or begun[-1:]]


def peak_bf16_tflops(name: str) -> float | None:
    """Dense bf16 tensor-core peak of the GPU called `name` in 10^12 operations/s; None when not certain."""
    found = _of_table(name)  # the driver's name: a wrong gpus.toml must not end a run
    return found.bf16_tflops if found else None


def _candidates(wanted: GpuName) -> list[GpuModel]:
    if not wanted.model:
        return []
    unsaid = ("",) if wanted.brand == "quadro" else ("", *_UNSAID)
    rows = (
        _fitting(wanted, unsaid)
        or _fitting(wanted, [word + ending for ending in _UNSAID_IF_ALONE for word in unsaid])
        or _with_series(wanted, unsaid)
        or _jetsons(wanted)
    )
    return [row for row in rows if row.confidence != "C"] or rows


def _with_series(wanted: GpuName, unsaid: tuple[str, ...]) -> list[GpuModel]:
    """Rows by a name that lacks its series: "a6000", "4090", "1080ti", "AGX Orin"."""
    if wanted.brand == "quadro":  # the Quadro 4000 of 2010 is no Quadro RTX 4000
        return []
    found = _fitting(wanted._replace(model=f"rtx{wanted.model}"), unsaid)
    if found and wanted.model.isdigit():  # "4090" is one card, but "4500" may be an A4500 or a PRO 4500 too
        for series in ("rtxa", "rtxpro"):
            found += _fitting(wanted._replace(model=f"{series}{wanted.model}"), unsaid)
    if not found and wanted.model[0].isdigit():
        found = _fitting(wanted._replace(model=f"gtx{wanted.model}"), ("",))
    return found or _fitting(wanted._replace(model=f"jetson{wanted.model}"), ("",))


def _jetsons(wanted: GpuName) -> list[GpuModel]:
    """Jetson boards by their chip alone: on every Orin board the driver says "Orin (nvgpu)"."""
    chip = wanted.model.removeprefix("jetson")
    if chip not in _JETSON_CHIPS:
        return []
    return [row for row, name in _parsed_table() if row.segment == "jetson" and chip in name.model]


def _fitting(wanted: GpuName, endings: Iterable[str]) -> list[GpuModel]:
    model = wanted.model.removesuffix("laptop")
    models = {model + ending + wanted.model[len(model) :] for ending in endings}
    return [row for row, name in _parsed_table() if name.model in models and _fits(wanted, row, name)]


def _fits(wanted: GpuName, row: GpuModel, name: GpuName) -> bool:
    if wanted.brand and not (row.segment or "").startswith(_BRAND_SEGMENTS[wanted.brand]):
        return False
    if wanted.memory_gib and wanted.memory_gib not in (row.memory_gib, row.usable_gib):
        return False
    # "A100-SXM-80GB" is how older drivers print an SXM4 board. A model with one form has none in its name.
    return not (wanted.form and name.form) or name.form.startswith(wanted.form)


def _common(rows: Sequence[GpuModel]) -> GpuModel | None:
    """What all `rows` agree on; None for no rows or different capabilities."""
    if len({row.capability for row in rows}) != 1:
        return None
    if len(rows) == 1:
        return rows[0]
    values = {name: {getattr(row, name) for row in rows} for name in GpuModel._fields}
    shared: dict[str, Any] = {name: each.pop() for name, each in values.items() if len(each) == 1}
    words = takewhile(lambda each: len(set(each)) == 1, zip(*(row.name.split() for row in rows), strict=False))
    shared["name"] = " ".join(each[0] for each in words) or rows[0].name
    shared["confidence"] = max(row.confidence for row in rows)
    return GpuModel(**{**shared, "aliases": ()})


def require_gpu(name: str) -> GpuModel:
    """The row of the table for the GPU of a --gpu option. Raises UsageError, with similar names, for others."""
    found = lookup(name)
    if found is None:
        near = [row.name for row in meanings(name)[:3]] or near_names(name)
        hint = f"did you mean {', '.join(near)}?" if near else "write it as nvidia-smi does, such as A100-SXM4-80GB"
        raise UsageError(f"--gpu {name}: unknown or ambiguous GPU", fix=hint)
    return found
