"""Bytes of optimizer states per trained parameter, by the names of the Trainer's --optim.

Sources: torch.optim; transformers.optimization.Adafactor; bitsandbytes 0.50 (optim/optimizer.py: 8-bit states with one
fp32 scale per 256 elements; paged ones are counted as if they stayed on the GPU); torchao 0.12 (one scale per 256
elements in 8 bits, per 128 in 4); the optimizers' own papers for the rest."""

from dsrun.datafiles import toml_beside
from dsrun.errors import UsageError, did_you_mean
from dsrun.zero.memory.model.architecture import ModelShapes

ADAMW = "adamw_torch"
"""As the stock Trainer has it, torch's AdamW over lists of tensors, which makes the roots of all second moments at a
time (optim/adam.py, _multi_tensor_adam); dsrun takes the fused one for it on GPUs."""
FUSED = "adamw_torch_fused"
"""What the stock Trainer takes by itself (transformers 5.23, training_args.py)."""
DEFAULT = ADAMW
TORCH_ADAMW = (ADAMW, FUSED)
_SCALE = 4 / 256


_STATES: dict[str, list[int]] = toml_beside(__file__)["states"]
_OF_DEEPSPEED: dict[str, str] = toml_beside(__file__)["deepspeed"]
_FACTORED = ("adafactor",)


def usual_optimizer(trainer: str) -> str:
    """The one of a training that names none."""
    return DEFAULT if trainer == "dsrun" else FUSED


def state_bytes(name: str, *, stage: int, weights: int = 4) -> float:
    """Bytes per trained parameter. Raises UsageError for an optimizer whose states are not known.

    `weights` are the bytes of a weight: torch keeps states in the dtype of what it updates, which under ZeRO is the
    fp32 master copy. That copy is flat, so Adafactor cannot factor the second moment there; without ZeRO its rows and
    columns are next to nothing."""
    if name not in _STATES:
        what = f"--optim {name}: how much memory its states take is not known"
        raise UsageError(what, fix=did_you_mean(name, _STATES, f"known: {', '.join(sorted(_STATES))}"))
    if stage == 0 and name in _FACTORED:
        return 0.0
    full, eight, four = _STATES[name]
    width = weights if stage == 0 and name.startswith(("adamw_torch", "rmsprop", "adagrad")) else 4
    return width * full + (1 + _SCALE) * eight + (0.5 + 2 * _SCALE) * four


def lifted_bytes(name: str, model: ModelShapes, *, stage: int) -> float:
    """Bytes of states, of all of a model in training, beyond `state_bytes`.

    The Trainer has bitsandbytes keep those of embeddings in fp32 instead of 8 bits (transformers 5.23, trainer.py,
    create_optimizer), which it cannot in ZeRO's flat shares. DeepSpeed's Muon leaves to Adam what is no hidden
    matrix."""
    eight = _STATES[name][1]
    if name == "muon":
        more, kinds = 4.0, {"embedding", "head", "vector"}
    elif eight and stage == 0 and not name.startswith("adamw_torch"):
        more, kinds = eight * (4 - 1 - _SCALE), {"embedding"}
    else:
        return 0.0
    return more * sum(weight.elements for weight in model.tensors() if weight.kind in kinds)


def of_deepspeed(kind: str) -> str:
    """The --optim that an "optimizer.type" of a DeepSpeed JSON comes to. Raises UsageError for an unknown one."""
    found = _OF_DEEPSPEED.get(kind.lower().replace("_", ""))
    if found is None:
        raise UsageError(f"optimizer.type {kind!r}: how much memory its states take is not known")
    return found
