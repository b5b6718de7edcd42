"""--long-context: what it sets, and over how many ranks a sequence is cut, before anything large is loaded; then less
memory inside a layer, by tiles of the MLP, and between layers, by activations on the host (--activation-offload)."""

from collections.abc import Callable
from functools import partial, wraps
from typing import Any

import torch
from torch.utils.checkpoint import checkpoint
from transformers import TrainerCallback

from dsrun.recipe.recipe import Recipe
from dsrun.recipe.recipe_spec import TrainSpec
from dsrun.recipe.resolve import with_defaults
from dsrun.train.base.distributed import DistributedWorld
from dsrun.train.base.refusals import refusal, refuse

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
    given = spec.sequence_parallel
    is_allowed = allowed(given, heads, keys)
    refuse("sequence_parallel", given=given, ranks=world.size, heads=heads, keys=keys, is_allowed=is_allowed)
    return given


def allowed(degree: int, heads: int, keys: int) -> bool:
    """Whether heads can be dealt out to `degree` ranks (deepspeed/runtime/sequence_parallel/ulysses_sp.py)."""
    return heads % degree == 0 and (keys % degree == 0 or degree % keys == 0)


def without_fused_loss(arguments: Any) -> None:
    """Keep Liger's fused loss, which takes the place of the model's forward, out of the tiled one's way."""
    own = {"cross_entropy": False, "fused_linear_cross_entropy": False}
    arguments.liger_kernel_config = {**(arguments.liger_kernel_config or {}), **own}


def save_memory(trainer: Any, *, length: int) -> None:
    """Tile the MLPs of the model for shards of up to `length` tokens."""
    model = trainer.model
    if hasattr(model, "get_base_model"):
        # Adapters alone are trained, and a tile without gradients would not be computed again for them.
        model.get_base_model().enable_input_require_grads()
    hidden = model.config.hidden_size
    for module in model.modules():
        if hasattr(module, "down_proj") and hasattr(module, "up_proj"):
            # As many tiles as the hidden size goes into the shard (DeepSpeed's ALST, https://arxiv.org/abs/2506.13996).
            tile_mlp(module, count=-(-length // hidden))


def tile_mlp(module: Any, *, count: int) -> None:
    """Have `module`, an MLP of hidden states [batch, length, hidden], run in `count` tiles, each computed again in the
    backward pass. On all ranks as many, as ZeRO-3 gathers weights for each. Unlike DeepSpeed's TiledMLP it leaves one
    gradient for each weight to autograd, so that nothing depends on how many chunks torch makes of a length."""
    if count == 1:
        return
    forward = module.forward

    def tiled(hidden: torch.Tensor) -> torch.Tensor:
        run = partial(checkpoint, forward, use_reentrant=False) if torch.is_grad_enabled() else forward
        # Empty ones where there are fewer tokens than tiles.
        return torch.cat([run(part) for part in hidden.flatten(0, 1).tensor_split(count)]).view_as(hidden)

    module.forward = tiled


# Copies of smaller tensors take longer than their memory is worth.
SMALLEST_ON_HOST = 1024


def activations_on_host(trainer: Any) -> None:
    """Keep what the backward pass needs in host memory until then. With checkpointing that is the inputs of layers,
    without it all but the weights, which are there anyway."""
    if trainer.args.gradient_checkpointing:
        trainer.add_callback(HostCheckpoints())
        return
    model, forward = trainer.model, trainer.model.forward
    host = torch.autograd.graph.save_on_cpu(pin_memory=torch.cuda.is_available())

    @wraps(forward)
    def saving_on_host(*args: Any, **kwargs: Any) -> Any:
        # Anew each time, as the engine moves the weights to buffers of its own.
        weights = {parameter.untyped_storage().data_ptr() for parameter in model.parameters()}

        def pack(tensor: torch.Tensor) -> Any:
            stays = tensor.numel() < SMALLEST_ON_HOST or tensor.untyped_storage().data_ptr() in weights
            return tensor if stays else host.pack_hook(tensor)

        def unpack(kept: Any) -> torch.Tensor:
            return kept if isinstance(kept, torch.Tensor) else host.unpack_hook(kept)

        with torch.autograd.graph.saved_tensors_hooks(pack, unpack):
            return forward(*args, **kwargs)

    model.forward = saving_on_host


def on_host(again: Callable[..., Any]) -> Callable[..., Any]:
    """A checkpointing function that keeps the inputs of a layer in host memory, pinned where there is a GPU."""

    def saved_on_host(*args: Any, **kwargs: Any) -> Any:
        # checkpoint() saves its inputs under these hooks, and what is computed inside under its own.
        with torch.autograd.graph.save_on_cpu(pin_memory=torch.cuda.is_available()):
            return again(*args, **kwargs)

    return saved_on_host


class HostCheckpoints(TrainerCallback):
    """Moves the checkpoints of layers to the host, once the Trainer has turned checkpointing on."""

    def on_train_begin(self, args: Any, state: Any, control: Any, model: Any = None, **kwargs: Any) -> None:
        for module in model.modules():
            if getattr(module, "_gradient_checkpointing_func", None) is not None:
                module._gradient_checkpointing_func = on_host(module._gradient_checkpointing_func)
