"""Bytes of optimizer states per trained parameter, by the names of the Trainer's --optim.

Sources: torch.optim; transformers.optimization.Adafactor; bitsandbytes 0.50 (optim/optimizer.py: 8-bit states with one
fp32 scale per 256 elements; paged ones are counted as if they stayed on the GPU); torchao 0.12 (one scale per 256
elements in 8 bits, per 128 in 4); the optimizers' own papers for the rest.
"""

from dsrun.errors import UsageError, did_you_mean

DEFAULT = "adamw_torch"
TORCH_ADAMW = (DEFAULT, "adamw_torch_fused")
_SCALE = 4 / 256

# Running means and the like, as (elements in fp32, elements in 8 bits, elements in 4 bits) per parameter.
_STATES: dict[str, tuple[int, int, int]] = {
    **dict.fromkeys(("adamw_torch", "adamw_torch_fused", "adamw_torch_xla", "adamw_torch_npu_fused"), (2, 0, 0)),
    **dict.fromkeys(("paged_adamw_32bit", "stable_adamw", "schedule_free_adamw", "schedule_free_radam"), (2, 0, 0)),
    **dict.fromkeys(("adamw_8bit", "adamw_bnb_8bit", "paged_adamw_8bit", "adamw_torch_8bit"), (0, 2, 0)),
    "adamw_torch_4bit": (0, 0, 2),
    **dict.fromkeys(("ademamix", "paged_ademamix_32bit", "grokadamw"), (3, 0, 0)),
    **dict.fromkeys(("ademamix_8bit", "paged_ademamix_8bit"), (0, 3, 0)),
    **dict.fromkeys(("lion_32bit", "paged_lion_32bit", "adagrad", "schedule_free_sgd"), (1, 0, 0)),
    **dict.fromkeys(("rmsprop", "rmsprop_bnb", "rmsprop_bnb_32bit"), (1, 0, 0)),
    **dict.fromkeys(("lion_8bit", "paged_lion_8bit", "rmsprop_bnb_8bit"), (0, 1, 0)),
    "sgd": (0, 0, 0),
    "adafactor": (1, 0, 0),
    # Of embeddings and vectors, which DeepSpeed's Muon leaves to Adam, it keeps a second one.
    "muon": (1, 0, 0),
}
# The same under the names of DeepSpeed's own optimizers ("optimizer.type"), in small letters.
_OF_DEEPSPEED = {
    **dict.fromkeys(("adam", "adamw", "fusedadam", "lamb", "onebitadam", "zerooneadam"), "adamw_torch"),
    "lion": "lion_32bit", "adagrad": "adagrad", "sgd": "sgd", "muon": "muon",
}  # fmt: skip
_FACTORED = ("adafactor",)


def state_bytes(name: str, *, stage: int, weights: int = 4) -> float:
    """Bytes per trained parameter. Raises UsageError for an optimizer whose states are not known.

    `weights` are the bytes of a weight: torch keeps states in the dtype of what it updates, which under ZeRO is the
    fp32 master copy. That copy is flat, so Adafactor cannot factor the second moment there; without ZeRO its rows and
    columns are next to nothing.
    """
    if name not in _STATES:
        raise UsageError(
            f"--optim {name}: how much memory its states take is not known",
            fix=did_you_mean(name, _STATES, f"known: {', '.join(sorted(_STATES))}"),
        )
    if stage == 0 and name in _FACTORED:
        return 0.0
    full, eight, four = _STATES[name]
    width = weights if stage == 0 and name.startswith(("adamw_torch", "rmsprop", "adagrad")) else 4
    return width * full + (1 + _SCALE) * eight + (0.5 + 2 * _SCALE) * four


def of_deepspeed(kind: str) -> str:
    """The --optim that an "optimizer.type" of a DeepSpeed JSON comes to. Raises UsageError for an unknown one."""
    found = _OF_DEEPSPEED.get(kind.lower().replace("_", ""))
    if found is None:
        raise UsageError(f"optimizer.type {kind!r}: how much memory its states take is not known")
    return found
