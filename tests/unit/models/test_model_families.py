"""One table of model families: generator, linter, planner and trainer say the same about each."""

from __future__ import annotations

import json
from types import SimpleNamespace

import pytest

from dsrun.errors import UsageError
from dsrun.hardware.gpu_facts import lookup
from dsrun.models.families import FAMILIES, family_of, model_type_of
from dsrun.recipe.precision import decide_precision
from dsrun.zero.generate.blocks import ConfigContext, HardwareFacts, precision_of
from dsrun.zero.generate.explain import notices
from dsrun.zero.generate.spec import ZeroSpec
from dsrun.zero.lint.config_check import check
from dsrun.zero.memory.model.shapes import families
from dsrun.zero.memory.plan_request import cluster, default_precision

FP16 = json.dumps({"fp16": {"enabled": True}, "train_micro_batch_size_per_gpu": 1})
WITHOUT_BF16 = "v100-32"


def generator_notice(kind):
    return notices(ZeroSpec(precision="fp16"), HardwareFacts(model_type=kind))


def linter_codes(kind):
    return {each.code for each in check(FP16, world_size=1, target="deepspeed", model_type=kind)}


@pytest.mark.parametrize("kind", [kind for kind, family in FAMILIES.items() if family.overflows_in_fp16])
def test_family_that_overflows_is_refused_fp16_everywhere(kind):
    assert any("overflow in fp16" in line for line in generator_notice(kind))
    facts = HardwareFacts(model_type=kind, gpu=lookup(WITHOUT_BF16))
    assert precision_of(ConfigContext(spec=ZeroSpec(), facts=facts)).value == "fp32"
    assert "t5_fp16" in linter_codes(kind)
    model = SimpleNamespace(family=kind)
    assert default_precision("auto", model, cluster(WITHOUT_BF16)) == "fp32"
    with pytest.raises(UsageError, match="overflow in fp16"):
        default_precision("fp16", model, cluster(WITHOUT_BF16))
    with pytest.raises(UsageError, match="overflow in fp16"):
        decide_precision({"fp16": True}, model_type=kind, bf16_supported=False, device="cuda")


@pytest.mark.parametrize("kind", ["llama", "bart", "a_family_of_tomorrow"])
def test_other_families_may_train_in_fp16(kind):
    assert not any("overflow" in line for line in generator_notice(kind))
    assert "t5_fp16" not in linter_codes(kind)
    assert default_precision("auto", SimpleNamespace(family=kind), cluster(WITHOUT_BF16)) == "fp16"
    assert decide_precision({"fp16": True}, model_type=kind, bf16_supported=False, device="cuda") == "fp16"


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("google/umt5-small", "umt5"),
        ("google/long-t5-tglobal-base", "longt5"),
        ("google/mt5-small", "mt5"),
        ("t5-large", "t5"),
        ("google/byt5-small", "t5"),  # its config.json says t5
        ("google/switch-base-8", "switch_transformers"),
        ("t5-experiments/llama-7b", None),
        ("facebook/bart-large", None),
    ],
)
def test_family_from_model_name(name, kind):
    assert model_type_of(name) == kind


def test_every_family_is_known_to_transformers():
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING_NAMES

    assert FAMILIES.keys() <= CONFIG_MAPPING_NAMES.keys()
    assert family_of(None) == family_of("llama")


def test_tied_embeddings_are_the_defaults_of_transformers():
    from transformers import CONFIG_MAPPING

    kinds = FAMILIES.keys() | families()
    tied = {kind for kind in kinds if CONFIG_MAPPING[kind]().tie_word_embeddings}
    assert tied == {kind for kind in kinds if family_of(kind).ties_embeddings}
