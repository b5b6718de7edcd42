"""SLURM's generic resources: which GPUs a GRES or TRES string stands for."""

import re
from dataclasses import dataclass

from dsrun.errors import UsageError

# One entry without its remarks in brackets: gpu, gpu:4, gpu:a100:4, gpu:a100:no_consume:4, gres:gpu:2,
# gres/gpu:a100=4. SLURM's own manual pages: slurm.conf (Gres), gres.conf, squeue (--format %b, tres-alloc).
_WORD = r"\w[\w.+@-]*"
_ENTRY = re.compile(
    rf"(?:gres[/:])?(?P<name>{_WORD}(?:/{_WORD})*)(?P<parts>(?::(?:\w[\w.+@/-]*)?)*)(?:=(?P<total>\S+))?", re.IGNORECASE
)
# Of other resources in a TRES string: cpu=8, mem=62.50G, cpu=00:00:12, energy=N/A.
_AMOUNT = re.compile(r"\d[\d.:-]*[a-z]*|N/A", re.IGNORECASE)
_FORMS = "the forms are gpu:4, gpu:a100:4, gres/gpu:a100=4"
_COUNT = re.compile(r"(\d{1,18})([kmgtp]?)", re.IGNORECASE)
_UNITS = {"": 0, "k": 1, "m": 2, "g": 3, "t": 4, "p": 5}
_REMARK = re.compile(r"\([^()]*\)")  # (S:0-1), (IDX:0,2), (null)
_COMMA = re.compile(r",(?![^()]*\))")


# 8xa100, a100x8, a100*8: people and clouds write GPUs so, SLURM does not.
_TIMES = (
    re.compile(r"(?P<count>\d{1,4})\s*[x×*]\s*(?P<name>\S.*)", re.IGNORECASE),
    re.compile(r"(?P<name>\S.*?)\s*[x×*]\s*(?P<count>\d{1,4})", re.IGNORECASE),
)


@dataclass(frozen=True, kw_only=True)
class GpuGres:
    """GPUs of one type as SLURM counts them: `type` as its administrator called it, None where it has none.

    `capability` None: the type does not say for certain which GPU it is, as with MIG slices by size alone."""

    type: str | None
    count: int
    capability: tuple[int, int] | None

    def __str__(self) -> str:
        return f"gpu:{self.type}:{self.count}" if self.type else f"gpu:{self.count}"


def parse_gres(text: str) -> tuple[GpuGres, ...]:
    """The GPUs in a GRES string as sinfo and scontrol print it, or in a TRES string, in its order.

    Other resources (mps and shard, which are shares of the GPUs beside them, bandwidth, cpu, mem, ...) are left
    out; "(null)" is none. Raises UsageError for an entry that has no form SLURM knows."""
    found: list[GpuGres] = []
    totals: list[int] = []
    for piece in _COMMA.split(text):
        entry = _REMARK.sub("", piece).strip()
        if not entry:
            continue
        match = _ENTRY.fullmatch(entry)
        if not match:
            raise UsageError(f"{piece.strip()!r} is not a GRES", fix=_FORMS)
        if match["name"].lower() != "gpu":
            # A line like "Gres=gpu:a100:4" is not a list, and must not pass for one without GPUs.
            if match["total"] and not _AMOUNT.fullmatch(match["total"]):
                raise UsageError(f"{piece.strip()!r} is not a GRES", fix=_FORMS)
            continue
        gpus = _gpus(match, piece.strip())
        if match["total"] and gpus.type is None:
            totals.append(gpus.count)
        else:
            found.append(gpus)
    # A TRES string has the sum of all types beside the types: gres/gpu=6,gres/gpu:a100=4.
    untyped = sum(totals) - sum(each.count for each in found) if totals else 0
    if untyped > 0:
        found.append(GpuGres(type=None, count=untyped, capability=None))
    return tuple(found)


def written_gpus(text: str) -> str:
    """GPUs as dsrun writes them (a100:8) from gpu:a100:8, 8xa100, a100x8 or a100*8; any other text as it is."""
    bare = re.sub(r"^(gres[/:])?gpu:(?=.*[a-z])", "", text.strip(), flags=re.IGNORECASE)
    for form in _TIMES:
        match = form.fullmatch(bare)
        # An RTX4090 is no 4090 GPUs called RT, but a site has GPUs of other names.
        if match and not _is_gpu(bare) and ("*" in bare or _is_gpu(match["name"])):
            return f"{match['name']}:{match['count']}"
    return bare


def _is_gpu(name: str) -> bool:
    from dsrun.hardware.gpu_facts import lookup, meanings  # the table of all GPUs, which a mere number does without

    return bool(meanings(name) or lookup(name))


def _gpus(match: re.Match[str], piece: str) -> GpuGres:
    parts = [part for part in match["parts"].split(":") if part and part.lower() != "no_consume"]
    total = match["total"]
    if total is None and parts and _COUNT.fullmatch(parts[-1]):
        total = parts.pop()
    if len(parts) > 1 or (total and not _COUNT.fullmatch(total)):
        raise UsageError(f"{piece!r} is not a GRES for GPUs", fix=_FORMS)
    if not parts:
        return GpuGres(type=None, count=_count(total), capability=None)
    from dsrun.hardware.gpu_facts import lookup  # as above

    model = lookup(parts[0])
    return GpuGres(type=parts[0], count=_count(total), capability=model.capability if model else None)


def _count(text: str | None) -> int:
    """SLURM's count, with K for 1024 and so on; 1 where none is written."""
    match = _COUNT.fullmatch(text) if text else None
    return int(match[1]) * 1024 ** _UNITS[match[2].lower()] if match else 1
