"""What generator, linter, planner and trainer must know about families of models, by `model_type` of config.json.

Facts that a model's own config states are read there; this table has those that it does not.
"""

import json
from collections.abc import Mapping
from contextlib import suppress
from functools import cache
from typing import NamedTuple

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


_T5 = ModelFamily(overflows_in_fp16=True, relative_positions=True, ties_embeddings=True)
_TIED = ModelFamily(ties_embeddings=True)

# Those whose LM heads in transformers ask for `is_decoder=True`.
# fmt: off
_BERT_LIKE = (
    "bert", "bert-generation", "big_bird", "camembert", "data2vec-text", "electra", "ernie", "megatron-bert", "rembert",
    "roberta", "roberta-prelayernorm", "roc_bert", "roformer", "xlm-roberta", "xlm-roberta-xl", "xmod",
)
# fmt: on

FAMILIES: Mapping[str, ModelFamily] = {
    # Raffel et al. 2020; transformers' own code for them keeps the projection `wo` in fp32 and clamps activations.
    "umt5": _T5._replace(unties_when_loaded=True, name_parts=("umt5",)),
    "longt5": _T5._replace(name_parts=("longt5", "long-t5")),
    "mt5": _T5._replace(unties_when_loaded=True, name_parts=("mt5",)),
    "t5": _T5._replace(unties_when_loaded=True, task_prefix=True, name_parts=("byt5", "t5")),
    "switch_transformers": _T5._replace(name_parts=("switch-base", "switch-large")),
    "pop2piano": _T5,
    "udop": _T5._replace(name_parts=("udop",)),
    # ALiBi (Press et al. 2022)
    "bloom": _TIED._replace(relative_positions=True),
    "mpt": _TIED._replace(relative_positions=True),
    "bart": _TIED._replace(unused_positions=2),
    "mbart": _TIED._replace(unused_positions=2),
    "opt": _TIED._replace(unused_positions=2),
    "marian": _TIED._replace(computed_positions=True),
    "pegasus": _TIED._replace(computed_positions=True),
    **dict.fromkeys(("m2m_100", "gpt2", "falcon", "gemma", "gemma2", "gemma3", "gemma3_text"), _TIED),
    **dict.fromkeys(_BERT_LIKE, _TIED._replace(reads_both_ways=True)),
    "rembert": ModelFamily(reads_both_ways=True),
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


@cache
def other_models() -> frozenset[str]:
    """The model types of transformers that are neither: encoders, and models of images and of speech."""
    return frozenset(json_beside(__file__, "other_models.json")["model_types"])
