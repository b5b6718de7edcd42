"""Batch arithmetic: global batch = micro batch × world size × accumulation steps."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from dsrun.errors import UsageError
from dsrun.recipe.flags import hf_flags
from dsrun.system.terminal.display import counted

if TYPE_CHECKING:
    from dsrun.recipe.recipe import Recipe

SHOWN_DIVISORS = 4
# What the Trainer and `dsrun train` both take when nothing is said.
DEFAULT_MICRO_BATCH = 8
SIZES = ("per_device_train_batch_size", "gradient_accumulation_steps")
BATCH_FLAGS = ("global_batch_size", "global_batch_tokens", "micro_batch_size", *SIZES)


@dataclass(frozen=True)
class BatchPlan:
    """Samples per optimizer step, and how they are spread.

    `global_batch` samples = `micro_batch` samples per rank and forward pass × `world_size` ranks ×
    `accumulation` forward passes per optimizer step. With sequence parallelism `sharing` ranks take one share: then
    `world_size` counts such groups."""

    global_batch: int
    micro_batch: int
    world_size: int
    accumulation: int
    sharing: int = 1

    def sentence(self, device: str = "GPU") -> str:
        """`64 = 4 × 8 GPUs × 2 steps`; `device` is the word for one rank, such as "CPU rank"."""
        ranks = f"{self.world_size} {device}{'' if self.world_size == 1 else 's'}"
        if self.sharing > 1:
            groups = f"{self.world_size} group{'' if self.world_size == 1 else 's'}"
            ranks = f"{groups} of {self.sharing} {device}s"
        steps = f"{self.accumulation} step{'' if self.accumulation == 1 else 's'}"
        return f"{self.global_batch} = {self.micro_batch} × {ranks} × {steps}"

    def __str__(self) -> str:
        return self.sentence()


def batch_plan(
    *,
    global_batch_size: int | None,
    micro_batch_size: int | None,
    accumulation: int | None,
    world_size: int,
    default_micro: int,
) -> BatchPlan:
    """Fill in what was not given (None) and check that all of it agrees.

    Given a global batch alone, the micro batch is the largest divisor of a rank's share up to
    `default_micro`; given no global batch, it follows from the others. Raises UsageError, with the nearest
    sizes that do divide, otherwise."""
    if global_batch_size is None:
        micro = micro_batch_size or default_micro
        steps = accumulation or 1
        return BatchPlan(micro * world_size * steps, micro, world_size, steps)
    if micro_batch_size is None:
        unit = world_size * (accumulation or 1)
        if global_batch_size % unit:
            steps_word = f" × {counted(accumulation, 'step')}" if accumulation else ""
            raise _does_not_divide(global_batch_size, unit, f"{counted(world_size, 'rank')}{steps_word}", "")
        share = global_batch_size // unit
        divisors = (each for each in range(1, min(share, default_micro) + 1) if share % each == 0)
        micro = share if accumulation else max(divisors)
        return BatchPlan(global_batch_size, micro, world_size, share * unit // (micro * world_size))
    unit = micro_batch_size * world_size
    if global_batch_size % unit:
        hint = _micro_hint(global_batch_size, micro_batch_size, world_size)
        raise _does_not_divide(global_batch_size, unit, f"{micro_batch_size} × {counted(world_size, 'rank')}", hint)
    steps = global_batch_size // unit
    if accumulation is not None and accumulation != steps:
        product = unit * accumulation
        raise UsageError(
            f"global batch {global_batch_size} is not {micro_batch_size} × {counted(world_size, 'rank')}"
            f" × {counted(accumulation, 'step')} = {product}",
            fix=f"leave out one of the three, or use --gradient_accumulation_steps {steps}",
        )
    return BatchPlan(global_batch_size, micro_batch_size, world_size, steps)


def _does_not_divide(global_batch: int, unit: int, product: str, hint: str) -> UsageError:
    below = global_batch // unit * unit
    sizes = f"{below} or {below + unit}" if below else str(unit)
    return UsageError(
        f"global batch {global_batch} does not divide by {product}", fix=f"use --global-batch-size {sizes}{hint}"
    )


def _micro_hint(global_batch: int, micro: int, world_size: int) -> str:
    """The micro batches near the given one that divide a rank's share."""
    if global_batch % world_size:
        return ""
    share = global_batch // world_size
    divisors = [each for each in range(1, share + 1) if share % each == 0]
    near = sorted(sorted(divisors, key=lambda each: (abs(each - micro), each))[:SHOWN_DIVISORS])
    return f", or --micro-batch-size {_either(near)}"


def _either(numbers: list[int]) -> str:
    texts = [str(number) for number in numbers]
    return texts[0] if len(texts) == 1 else f"{', '.join(texts[:-1])} or {texts[-1]}"


def batch_of(
    recipe: "Recipe", world_size: int, *, of: int | None = None, saved: int | None = None, auto: bool = False
) -> BatchPlan:
    """The batch sizes on `world_size` ranks, as `batch_of_groups` has them; `of` are those of all nodes."""
    # How many ranks share a row depends on the model where --sequence-parallel does not say it.
    sharing = recipe.spec.sequence_parallel or world_size if recipe.spec.long_context else 1
    return batch_of_groups(recipe, world_size // sharing, of=of and of // sharing, saved=saved, auto=auto)


def batch_of_groups(
    recipe: "Recipe", groups: int, *, of: int | None = None, saved: int | None = None, auto: bool = False
) -> BatchPlan:
    """The batch sizes where `groups` take different samples. Steps and the place in the data are counted in global
    batches: one that followed from the number of ranks stays that of the checkpoint to go on from, `saved`. With `auto`
    a rank begins with its whole share, which is halved where memory runs out. Where nodes are lost (--elastic), the
    global batch stays that of all groups, `of`, and no micro batch is larger than theirs. Raises UsageError where they
    do not divide."""
    if of and of != groups:
        whole = batch_of_groups(recipe, of, saved=saved, auto=auto)
        known = {"world_size": groups, "default_micro": whole.micro_batch}
        return batch_plan(global_batch_size=whole.global_batch, micro_batch_size=None, accumulation=None, **known)
    spec = recipe.spec
    micro = spec.micro_batch_size or recipe.hf.get("per_device_train_batch_size")
    accumulation = recipe.hf.get("gradient_accumulation_steps")
    total = spec.global_batch_size
    if saved and not total and not accumulation and saved % (groups * (micro or 1)) == 0:
        total = saved
    return batch_plan(
        global_batch_size=total,
        micro_batch_size=micro,
        accumulation=accumulation,
        world_size=groups,
        default_micro=(total if auto else None) or DEFAULT_MICRO_BATCH,
    )


def trainer_values(given: Mapping[str, Any], world_size: int | None) -> dict[str, Any]:
    """The training arguments as the Trainer will see them, defaults included; what cannot be known is left out.

    `given` are values by their flags' canonical names; `world_size` counts ranks. With a global batch size the
    accumulation steps follow from it, and `train_batch_size` is there too. Raises UsageError when they do not divide.
    """
    values = {flag.key: flag.default for flag in hf_flags().values()}
    values |= {hf_flags()[name].key: value for name, value in given.items() if name in hf_flags()}
    own = {name: given[name] for name in ("global_batch_size", "micro_batch_size", *SIZES) if name in given}
    total, micro = own.get("global_batch_size"), own.get("micro_batch_size") or own.get(SIZES[0])
    if micro is not None:
        values[SIZES[0]] = micro
    if total is None:
        return values
    values["train_batch_size"] = total
    if world_size is not None:
        plan = batch_plan(
            global_batch_size=total,
            micro_batch_size=micro,
            accumulation=own.get(SIZES[1]),
            world_size=world_size,
            default_micro=DEFAULT_MICRO_BATCH,
        )
        return values | dict(zip(SIZES, (plan.micro_batch, plan.accumulation), strict=True))
    unknown = [name for name, size in zip(SIZES, (micro, own.get(SIZES[1])), strict=True) if size is None]
    return {name: value for name, value in values.items() if name not in unknown}
