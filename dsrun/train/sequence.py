"""--long-context: what it sets, over how many ranks a sequence is cut, and its loss, of rows that are cut into shards,
one for each rank of a group, and computed in tiles of tokens; then less memory inside a layer, by tiles of the MLP, and
between layers, by activations on the host (--activation-offload)."""

from collections.abc import Callable
from functools import partial, wraps
from typing import Any

import torch
import torch.distributed as dist
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint
from transformers import TrainerCallback

from dsrun.recipe.recipe import Recipe
from dsrun.recipe.recipe_spec import TrainSpec
from dsrun.recipe.resolve import with_defaults
from dsrun.train.base.distributed import DistributedWorld
from dsrun.train.base.labels import IGNORED, shifted_targets
from dsrun.train.base.refusals import refusal, refuse
from dsrun.train.loss.model_loss import ModelLoss
from dsrun.train.loss.protocol import PreferenceInputs

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


TILE = 1024
"""Tokens whose logits exist at a time; with 128,000 of a vocabulary they take 1.5 GiB with their gradients."""


def shard(inputs: dict[str, torch.Tensor], degree: int, rank: int, pad_id: int = 0) -> dict[str, torch.Tensor]:
    """This rank's part of whole rows, padded on the right to a multiple of `degree`: input_ids and position_ids
    [batch, length / degree], and `targets` alike, label i + 1 at place i, shifted before the cut."""
    ids, labels = inputs["input_ids"], inputs["labels"]
    targets = shifted_targets(labels)
    short = -ids.shape[1] % degree
    ids, targets = F.pad(ids, (0, short), value=pad_id), F.pad(targets, (0, short), value=IGNORED)
    positions = torch.arange(ids.shape[1], device=ids.device).expand_as(ids)
    parts = {"input_ids": ids, "position_ids": positions, "targets": targets}
    return {name: each.chunk(degree, 1)[rank].contiguous() for name, each in parts.items()}


class SequenceLoss(ModelLoss):
    """The loss of `model`, a causal LM that is not wrapped yet, whose rows `degree` neighbouring ranks share; batches
    hold whole rows. `length` is the most tokens of a row."""

    no_logits = "--long-context makes no logits of whole rows"

    def __init__(self, model: Any, *, degree: int, length: int, smoothing: float = 0.0) -> None:
        super().__init__("shared", shifted=True, smoothing=smoothing)
        self.degree = degree
        self.rank = dist.get_rank() % degree if degree > 1 else 0
        self.tiles = -(-length // degree // TILE)
        self.attention: UlyssesAttention | None = None
        if degree > 1:
            # Of neighbouring ranks. All make every group: torch demands it of those, too, that are not in it.
            group, _ = dist.new_subgroups(degree)
            self.attention = UlyssesAttention(model, group, length)
        self._tile_head(model)

    def __call__(self, model: Any, inputs: PreferenceInputs, items: torch.Tensor) -> tuple[torch.Tensor, Any]:
        """This rank's share of the mean over `items`, the target tokens of the whole global batch."""
        outputs, _ = self._run(model, inputs, self.smoothing)
        return outputs["loss"] / items, outputs

    @torch.no_grad()
    def sums(self, model: Any, inputs: PreferenceInputs) -> torch.Tensor:
        """As ModelLoss.sums, of this rank's shards."""
        before = self.attention.is_on if self.attention else False
        outputs, targets = self._run(model, inputs, 0.0)
        if self.attention:
            self.attention.is_on = before
        entropy = outputs["loss"]
        return torch.stack([entropy, entropy, targets.ne(IGNORED).sum().to(entropy)]).double()

    def _run(self, model: Any, inputs: PreferenceInputs, smoothing: float) -> tuple[Any, torch.Tensor]:
        part = shard(inputs, self.degree, self.rank)
        targets = part.pop("targets")
        if self.attention:
            # It stays on for the backward pass, which computes checkpointed layers again.
            self.attention.is_on = True
        self._smoothing, self._passes_hidden = smoothing, True
        try:
            return model(**part, labels=targets, use_cache=False), targets
        finally:
            self._passes_hidden = False

    def _tile_head(self, model: Any) -> None:
        """Have the output embedding pass hidden states through, of which the loss makes logits tile by tile. Both stay
        inside the model's forward, where ZeRO-3 gathers weights."""
        head = model.get_output_embeddings()
        forward = head.forward
        self._passes_hidden, self._smoothing = False, 0.0

        def pass_hidden(hidden: torch.Tensor) -> torch.Tensor:
            return hidden if self._passes_hidden else forward(hidden)

        def of_tile(hidden: torch.Tensor, targets: torch.Tensor, smoothing: float) -> torch.Tensor:
            logits = head(hidden).float()
            return F.cross_entropy(logits, targets, ignore_index=IGNORED, reduction="sum", label_smoothing=smoothing)

        def loss_function(logits: torch.Tensor, labels: torch.Tensor, **_: Any) -> torch.Tensor:
            self._passes_hidden = False
            hidden, targets = logits.flatten(0, 1), labels.flatten()
            # As many tiles on every rank, though rows differ in length: ZeRO-3 gathers the head for each.
            total = hidden.new_zeros((), dtype=torch.float32)
            for tile, some in zip(*(each.tensor_split(self.tiles) for each in (hidden, targets)), strict=True):
                # The reentrant kind gives weights no gradient unless an input has one (torch.utils.checkpoint).
                total = total + checkpoint(of_tile, tile, some, self._smoothing, use_reentrant=False)
            return total

        plain = model.loss_function

        def chosen(*args: Any, **kwargs: Any) -> torch.Tensor:
            return loss_function(*args, **kwargs) if self._passes_hidden else plain(*args, **kwargs)

        head.forward = pass_hidden
        model.loss_function = chosen


class UlyssesAttention:
    """Ulysses attention (Jacobs et al. 2023, https://arxiv.org/abs/2309.14509) between the ranks that share a row. It
    stands in for the attention of a model while `is_on`. Rows are then shards, [batch, heads, local, head size], of
    sequences without padding on the left: DeepSpeed drops the mask, and causal attention needs none.

    DeepSpeed's own, without its process groups for the engine: ZeRO shards over all ranks and averages their gradients
    either way, and checkpoints keep the layout that they have without sequence parallelism."""

    def __init__(self, model: Any, group: Any, length: int) -> None:
        from deepspeed.runtime.sequence_parallel.ulysses_sp import UlyssesSPAttentionHF
        from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

        config = model.config
        kind = config._attn_implementation
        # Those that are wrong without a mask: eager, and sdpa with a sliding window.
        windows = sorted(each.sliding_window for each in model.modules() if getattr(each, "sliding_window", None))
        refuse("long_attention", kind=kind, windows=windows, length=length, model=config.model_type)
        self.is_on = False
        found = ALL_ATTENTION_FUNCTIONS[kind]
        # An earlier run of this process may have put its own there.
        self.kernel: Any = found.kernel if isinstance(found, UlyssesAttention) else found
        self.ulysses = UlyssesSPAttentionHF(
            attn=self.kernel,
            batch_size=1,
            attn_head_count=config.num_attention_heads,
            attn_head_size=getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads,
            kv_head_count=config.num_key_value_heads,
            num_hidden_layers=config.num_hidden_layers,
            process_group=group,
            seq_length_is_variable=True,
        )
        self.ulysses.core_attn_implementation = kind
        # By the name that the model asks for, as transformers prepares masks by that name.
        ALL_ATTENTION_FUNCTIONS[kind] = self

    def __call__(
        self,
        module: Any,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        attention_mask: torch.Tensor | None,
        **kwargs: Any,
    ) -> tuple[torch.Tensor, Any]:
        if not self.is_on:
            return self.kernel(module, query, key, value, attention_mask, **kwargs)
        ulysses = self.ulysses
        if ulysses.batch_size != len(query):
            # DeepSpeed fixes the batch when it is built; evaluation may have another.
            ulysses.batch_size = len(query)
            for name in ("required_query_shape", "required_key_value_shape", "required_context_shape"):
                length, _, *rest = getattr(ulysses, name)
                setattr(ulysses, name, torch.Size([length, len(query), *rest]))
        return ulysses(module, query, key, value, None, **kwargs)
