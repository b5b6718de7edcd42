"""What ZeRO-3 is told of a model before there is an engine."""

from __future__ import annotations

import pytest
import torch
from deepspeed.utils.z3_leaf_module import z3_leaf_module
from transformers import AutoConfig, AutoModelForCausalLM

from dsrun.train.certify.small import small_config
from dsrun.train.model.zero3 import keep_whole


class CalledExperts(torch.nn.Module):
    """As DBRX's: called itself, with modules inside."""

    def __init__(self):
        super().__init__()
        self.mlp = torch.nn.Linear(2, 2)

    def forward(self, hidden):
        return self.mlp(hidden)


class FusedExperts(torch.nn.Module):
    """As Mixtral's: parameters of its own alone."""

    def __init__(self):
        super().__init__()
        self.down = torch.nn.Parameter(torch.ones(2, 2, 2))


class ExpertsOfMethods(CalledExperts):
    """As JetMoE's in attention: they are never called themselves."""

    def forward(self, hidden):
        raise NotImplementedError("call its methods")


class ExpertsThatMayRefuse(CalledExperts):
    def forward(self, hidden):
        if not torch.is_tensor(hidden):
            raise NotImplementedError
        return super().forward(hidden)


def holding(experts):
    block = torch.nn.Module()
    block.experts = experts
    model = torch.nn.Module()
    model.block = block
    return model


def test_experts_that_are_modules_are_fetched_as_one():
    called = holding(CalledExperts())
    listed = holding(torch.nn.ModuleList([torch.nn.Linear(2, 2), torch.nn.Linear(2, 2)]))
    fused, with_identity = holding(FusedExperts()), holding(CalledExperts())
    with_identity.block.experts.mlp = torch.nn.Identity()
    refusing = holding(ExpertsThatMayRefuse())
    models = (called, listed, with_identity, fused, holding(ExpertsOfMethods()), refusing)
    for model in models:
        keep_whole(model, sharded=True)
    leaves = [[name for name, each in model.named_modules() if z3_leaf_module(each)] for model in models]
    assert leaves == [["block.experts"], ["block"], ["block.experts"], [], [], ["block.experts"]]


@pytest.mark.parametrize(
    ("kind", "layers"), [("rwkv", {"attention", "feed_forward"}), ("recurrent_gemma", {"temporal_block"})]
)
def test_layers_that_call_other_modules_for_one_token_are_fetched_as_one(kind, layers):
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(small_config(AutoConfig.for_model(kind)))
    keep_whole(model, sharded=True)
    assert {name.rpartition(".")[2] for name, each in model.named_modules() if z3_leaf_module(each)} == layers
