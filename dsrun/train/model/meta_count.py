"""`python -m dsrun.train.model.meta_count FOLDER`: count a model's parameters on the meta device, without memory.

Prints one JSON object: `tensors`, a list of [name, shape, kind] in the model's own order, tied tensors once, with the
kinds of `dsrun.zero.memory.model.architecture`; `config`, the settings of the model, defaults included; and
`transformers`, the version that built it.
"""

from __future__ import annotations

import json
import sys
from typing import Any

import torch
import transformers
from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForSeq2SeqLM
from transformers.pytorch_utils import Conv1D

from dsrun.train.model.hub import one_at_a_time


def build(folder: str) -> Any:
    """The model of `folder`'s config, without storage behind its tensors."""
    return without_storage(AutoConfig.from_pretrained(folder))


def without_storage(config: Any, *, trust_remote_code: bool = False) -> Any:
    """The model of a config, with tensors that have a shape and nothing behind it."""
    auto = AutoModelForSeq2SeqLM if config.is_encoder_decoder else AutoModelForCausalLM
    with one_at_a_time(trust_remote_code), torch.device("meta"):
        return auto.from_config(config, trust_remote_code=trust_remote_code)


def tensors(model: Any) -> list[tuple[str, list[int], str]]:
    """Name, shape and kind of every parameter."""
    owners: dict[int, Any] = {}
    for module in model.modules():
        for parameter in module.parameters(recurse=False):
            owners.setdefault(id(parameter), module)
    output = model.get_output_embeddings()
    return [(name, list(p.shape), _kind(p, owners[id(p)], output)) for name, p in model.named_parameters()]


def _kind(parameter: Any, owner: Any, output: Any) -> str:
    if not parameter.requires_grad:
        return "frozen"
    if parameter.ndim == 1:
        return "vector"
    if isinstance(owner, torch.nn.Embedding):
        return "embedding"
    if owner is output:
        return "head"
    return "linear" if isinstance(owner, torch.nn.Linear | Conv1D) else "experts"


def report(model: Any) -> dict[str, Any]:
    """What is printed about a model."""
    settings = json.loads(model.config.to_json_string(use_diff=False))
    return {"tensors": tensors(model), "config": settings, "transformers": transformers.__version__}


if __name__ == "__main__":
    json.dump(report(build(sys.argv[1])), sys.stdout)
