"""--elastic MIN:MAX: a run that goes on with fewer machines, by the same global batches."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import lcm
from typing import Any, Self

from dsrun.recipe.batch import BatchPlan, batch_of
from dsrun.recipe.parsed_value import COMMAND_LINE
from dsrun.recipe.recipe import Recipe
from dsrun.refusals import Refusals

_TEXTS = Refusals(__file__)


@dataclass(frozen=True)
class NodeRange:
    """From `least` to `most` machines."""

    least: int
    most: int

    @classmethod
    def parse(cls, text: str, where: str = "--elastic") -> Self:
        """Of MIN:MAX. Raises UsageError, which begins with `where`."""
        from dsrun.system.env import is_count, shortened  # few runs

        least, _, most = text.partition(":")
        if not (is_count(least) and is_count(most) and 1 <= int(least) < int(most)):
            raise _TEXTS.error("range.form", where=where, text=shortened(text))
        return cls(int(least), int(most))


def node_range(flag: str | None, given: str | None, nodes: int) -> NodeRange | None:
    """The range of `flag`, of the command that starts `nodes` machines, or else that which the recipe has `given`.

    Raises UsageError where these contradict each other."""
    if not (text := flag or given):
        return None
    _TEXTS.check("flags", flag=flag, given=given)
    found = NodeRange.parse(text)
    _TEXTS.check("nodes", found=found, nodes=nodes)
    return found


def nodes_of(text: str, nodes: int, where: str) -> int:
    """How many machines a job asks for that is elastic, and otherwise asks for `nodes` of them."""
    found = NodeRange.parse(text, where)
    _TEXTS.check("nodes", found=found, nodes=found.most if nodes == 1 else nodes)
    return found.most


def batches_by_nodes(
    recipe: Recipe, found: NodeRange | None, nodes: int, workers: int, *, saved: int | None = None
) -> Mapping[int, BatchPlan]:
    """How the global batch is spread over `nodes`, and over each other number of them in the range, with `workers`
    ranks each. `saved` is that of the checkpoint to go on from. Raises UsageError for what cannot go on with each."""
    of, spec, degree = nodes * workers, recipe.spec, recipe.spec.sequence_parallel or 1
    if found is None:
        return {nodes: batch_of(recipe, of, saved=saved)}
    file = recipe.hf.get("deepspeed")
    zero = (file.get("zero_optimization") or {}) if isinstance(file, dict) else {}
    names: dict[str, Any] = {"stage": str(zero.get("stage", spec.zero)), "optim": str(recipe.value("optim") or "")}
    _TEXTS.check("recipe", spec=spec, **names)
    hpz = zero.get("zero_hpz_partition_size", spec.hpz) if names["stage"] == "3" else 1
    names |= {"workers": workers, "degree": degree, "hpz": hpz if isinstance(hpz, int) else 1}
    counts = range(nodes, found.least - 1, -1)
    for count in counts:
        _TEXTS.check("count", nodes=count, ranks=count * workers, **names)
    unit = lcm(*(count * workers // degree for count in counts))
    whole = spec.global_batch_size or batch_of(recipe, of, saved=saved).global_batch
    if whole % unit:
        failing = next(count for count in counts if whole % (count * workers // degree))
        below = whole // unit * unit
        sizes = f"{below} or {below + unit}" if below else f"{unit}"
        each = f"{workers} rank{'s' * (workers > 1)}" + f", {degree} to a sequence" * (degree > 1)
        raise _TEXTS.error("batch.share", whole=whole, nodes=failing, each=each, sizes=sizes, found=found)
    return {each: batch_of(recipe, each * workers, of=of, saved=saved, auto=spec.auto_micro_batch) for each in counts}


def with_range(recipe: Recipe, found: NodeRange | None) -> Recipe:
    """The recipe by which ranks derive their batch from all nodes of the range."""
    if found is None or recipe.spec.elastic:
        return recipe
    spec = replace(recipe.spec, elastic=f"{found.least}:{found.most}")
    return replace(recipe, spec=spec, sources={**recipe.sources, "elastic": COMMAND_LINE})
