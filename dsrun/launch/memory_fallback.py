"""What a run changes when memory is short: remedy.json, and the micro batch that follows from it."""

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal, Self

from dsrun.system.files import parse_json

REMEDY_FILE = "remedy.json"
FallbackOffload = Literal["none", "cpu"]


@dataclass(frozen=True, kw_only=True)
class MemoryFallback:
    """remedy.json: how the run differs from its recipe, so that it fits into memory; the global batch never differs."""

    halvings: int = 0
    recompute: bool = False
    offload: FallbackOffload = "none"

    @classmethod
    def from_dict(cls, found: Any) -> Self:
        """The fallback of a remedy.json. Raises ValueError where the content is not one."""
        match found:
            case {"version": 1, "halvings": int(times), "recompute": bool(again), "offload": "none" | "cpu" as to} if (
                times >= 0
            ):
                return cls(halvings=times, recompute=again, offload=to)
        raise ValueError("not what this dsrun writes")

    def as_dict(self) -> dict[str, Any]:
        """The content of remedy.json."""
        return {"version": 1, **asdict(self)}


def stored_fallback(run: Path) -> MemoryFallback | None:
    """What remedy.json in the folder of a run says, nothing where there is no such file; None where it is damaged."""
    try:
        return MemoryFallback.from_dict(parse_json((run / REMEDY_FILE).read_text(encoding="utf-8")))
    except FileNotFoundError:
        return MemoryFallback()
    except (OSError, ValueError):
        return None


def shrink(micro_batch: int, accumulation: int, halvings: int) -> tuple[int, int]:
    """Micro batch and accumulation steps after `halvings` halvings; their product never changes.

    Each halving takes the largest micro batch of at most half the rows (at least 1) that divides the rank's share of
    the global batch: 8 × 1 becomes 4 × 2, 5 × 4 becomes 2 × 10, 3 × 1 becomes 1 × 3."""
    rows = micro_batch * accumulation
    for _ in range(halvings):
        if micro_batch == 1:
            break
        micro_batch = next(size for size in range(micro_batch // 2, 0, -1) if rows % size == 0)
    return micro_batch, rows // micro_batch
