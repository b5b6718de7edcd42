"""Weights by the names and in the shapes that they have in a model's files.

transformers puts some together as it loads them, such as the experts of a layer, and takes them apart as it saves them
(transformers' conversion_mapping.py). Here that is done for one group at a time, so that no more is in memory.
"""

from collections.abc import Collection, Sequence
from functools import lru_cache
from typing import Any

import torch
from transformers.conversion_mapping import get_model_conversion_mapping
from transformers.core_model_loading import PrefixChange, WeightConverter, apply_converters, revert_weight_conversion

from dsrun.train.checkpoint.weight_files import ExportWeight


def as_in_files(weights: Sequence[ExportWeight], model: Any, known: Collection[str] = ()) -> list[ExportWeight]:
    """What a save of `model`, which has no weights itself, would write of `weights`. Nothing changes where `known`, the
    names in the base model's files, has all of theirs: some hold the experts of a layer together."""
    done = [
        each for each in get_model_conversion_mapping(model, add_legacy=False) if not isinstance(each, PrefixChange)
    ]
    weights = [each for each in weights if each.name not in (model._keys_to_ignore_on_save or ())]
    if not done or {weight.name for weight in weights} <= set(known):
        return weights
    converters = [each.reverse_transform() for each in reversed(done) if isinstance(each, WeightConverter)]
    groups: dict[tuple[str, bool], list[ExportWeight]] = {}
    for weight in weights:
        name, pattern = apply_converters(weight.name, converters)
        groups.setdefault((name, pattern is not None), []).append(weight)

    @lru_cache(maxsize=1)  # of a group the next one asked for is most often part, too
    def converted(group: tuple[str, bool]) -> dict[str, torch.Tensor]:
        return revert_weight_conversion(model, {each.name: each.read() for each in groups[group]})

    found = []
    for group, members in groups.items():
        empty = {each.name: torch.empty(each.shape, dtype=each.dtype, device="meta") for each in members}
        for name, value in revert_weight_conversion(model, empty).items():

            def read(group: tuple[str, bool] = group, name: str = name) -> torch.Tensor:
                return converted(group)[name]

            found.append(ExportWeight(name, value.dtype, tuple(value.shape), read))
    return found
