"""What --long-context sets, and over how many ranks a sequence is cut; refusals, before anything large is loaded."""

from typing import Any

from dsrun.recipe.recipe import Recipe
from dsrun.recipe.recipe_spec import TrainSpec
from dsrun.recipe.resolve import with_defaults
from dsrun.train.base.distributed import DistributedWorld
from dsrun.train.base.refusals import refusal

SOURCE = "--long-context"
FAMILIES = ("llama", "mistral", "qwen2", "qwen3")
"""Families whose attention gets `position_ids` and whose logits are the output embedding of the last hidden state and
nothing more, both read in transformers 5.23 and held by tests/integration/test_long_context.py."""


def with_long_context(recipe: Recipe) -> Recipe:
    """The recipe with what --long-context sets where nothing else was given."""
    length = recipe.spec.long_context
    if length is None:
        return recipe
    values: dict[str, Any] = {"max_length": length, "gradient_checkpointing": True}
    values["per_device_eval_batch_size"] = 1
    if not recipe.given("global_batch_size"):
        values["micro_batch_size"] = 1
    return with_defaults(recipe, values, SOURCE)


def decide_degree(spec: TrainSpec, config: Any, task: str, world: DistributedWorld) -> int:
    """Ranks that share a row: --sequence-parallel, else as many of a node's ranks as the attention heads allow. Raises
    UsageError for a model or a number of ranks that cannot do it."""
    if spec.long_context is None:
        return 1
    if task != "causal-lm" or config.model_type not in FAMILIES:
        raise refusal("long_context.family", kind=config.model_type, known=", ".join(FAMILIES))
    heads = config.num_attention_heads
    keys = getattr(config, "num_key_value_heads", None) or heads
    if spec.sequence_parallel is None:
        node = range(world.local_size, 0, -1)
        return next(each for each in node if world.size % each == 0 and allowed(each, heads, keys))
    if world.size % spec.sequence_parallel:
        raise refusal("long_context.ranks", given=spec.sequence_parallel, ranks=world.size)
    if not allowed(spec.sequence_parallel, heads, keys):
        raise refusal("long_context.heads", given=spec.sequence_parallel, heads=heads, keys=keys)
    return spec.sequence_parallel


def allowed(degree: int, heads: int, keys: int) -> bool:
    """Whether heads can be dealt out to `degree` ranks (deepspeed/runtime/sequence_parallel/ulysses_sp.py)."""
    return heads % degree == 0 and (keys % degree == 0 or degree % keys == 0)
