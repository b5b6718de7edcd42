"""What generator, linter, planner and trainer must know about families of models, by `model_type` of config.json.

Facts that a model's own config states are read there; this table has those that it does not."""

import json
from collections.abc import Mapping
from contextlib import suppress
from functools import cache
from typing import Any, NamedTuple

from dsrun.datafiles import json_beside


class ModelFamily(NamedTuple):
    """The facts of one family; the defaults are those of Llama and of every family that is not in the table."""

    overflows_in_fp16: bool = False
    """Its activations exceed 65,504, the largest number of fp16, and the loss becomes NaN: bf16 or fp32 only."""
    relative_positions: bool = False
    """Samples may be of any length; the number of positions in its config is not a limit."""
    unused_positions: int = 0
    """Rows of its position table that no token uses (`padding_idx + 1` in transformers' code)."""
    computed_positions: bool = False
    """Its sinusoidal positions are a table that is never trained, and that files of weights may leave out."""
    casts_no_tables: bool = False
    """Its code adds tables that are no parameters, of sines or for a mask, in the dtype that they were made in."""
    ties_embeddings: bool = False
    """Its output embedding is the input's where its config does not say."""
    unties_when_loaded: bool = False
    """`tie_word_embeddings: false` gives it an output embedding when it is loaded, but not when it is initialised."""
    task_prefix: bool = False
    """It was trained with a text before every source that names the task."""
    reads_both_ways: bool = False
    """It has a causal LM head, but attends to later tokens too unless its config says `is_decoder`."""
    name_parts: tuple[str, ...] = ()
    """What its models' names on the Hub contain, where a family must be told from a name alone."""


FAMILIES: Mapping[str, ModelFamily] = {
    name: ModelFamily(**{**group["facts"], "name_parts": tuple(group["facts"].get("name_parts", ()))})
    for group in json_beside(__file__, "families.json")
    for name in group["families"]
}

SEQ2SEQ = frozenset({"t5", "mt5", "umt5", "longt5", "bart", "mbart", "marian", "pegasus", "m2m_100"})
"""Those whose config.json may leave `is_encoder_decoder` out, as it is their default."""


def family_of(model_type: str | None) -> ModelFamily:
    """The facts of a family; the defaults for one that is not in the table."""
    return FAMILIES.get(model_type or "", ModelFamily())


def overflow_in_fp16(model_type: str) -> str:
    """The one sentence for every command that meets fp16 and a family that overflows in it."""
    return f"{model_type} models overflow in fp16 and their loss becomes NaN"


def model_type_of(model: str | None) -> str | None:
    """The model type in config.json of a local folder, else that of the family that the name of a model names
    ("google/umt5-small"); None where it names none of the table."""
    if not model:
        return None
    from pathlib import Path  # few configurations name a model

    with suppress(OSError, ValueError, KeyError, TypeError, RecursionError):
        return str(json.loads(Path(model, "config.json").read_text(encoding="utf-8"))["model_type"])
    last = model.rpartition("/")[2].lower()
    return next((kind for kind, family in FAMILIES.items() if any(part in last for part in family.name_parts)), None)


def is_trained(config: Mapping[str, Any]) -> bool:
    """Whether `dsrun train` trains models of a config.json: of those of images and text, their text model."""
    text = config.get("text_config")
    kinds = (config.get("model_type"), text.get("model_type") if isinstance(text, dict) else None)
    return any(kind is not None and kind not in other_models() for kind in kinds)


@cache
def other_models() -> frozenset[str]:
    """The model types of transformers that are neither: encoders, and models of images and of speech."""
    return frozenset(json_beside(__file__, "other_models.json")["model_types"])
