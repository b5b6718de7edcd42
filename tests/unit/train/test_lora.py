"""Which layers of a model get adapters."""

from dataclasses import replace

import pytest
import torch
from peft import get_peft_model_state_dict
from transformers import AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM, Qwen3MoeConfig, Qwen3MoeForCausalLM

from dsrun.errors import UsageError
from dsrun.models.headers import read_header
from dsrun.recipe.recipe_spec import TrainSpec
from dsrun.train.checkpoint.plain import in_adapter
from dsrun.train.export.export_model import ExportRequest, export
from dsrun.train.model.adapters import add_lora, check_adapters

FILE = "model.safetensors"
ATTENTION = {"q_proj", "k_proj", "v_proj", "o_proj"}


@pytest.mark.parametrize(
    ("targets", "adapted"),
    [
        ([], ATTENTION | {"gate_proj", "up_proj", "down_proj"}),
        (["all-linear"], ATTENTION | {"gate_proj", "up_proj", "down_proj"}),
        (["q_proj", "v_proj"], {"q_proj", "v_proj"}),
    ],
)
def test_lora_target_layers(targets, adapted):
    """The layers that were named, or every linear one."""
    config = LlamaConfig(vocab_size=16, hidden_size=8, intermediate_size=8, num_hidden_layers=1, num_attention_heads=1)
    model = add_lora(LlamaForCausalLM(config), TrainSpec(lora=2, lora_targets=targets), "causal-lm")
    names = {name.split(".lora_A")[0].rpartition(".")[2] for name, _ in model.named_parameters() if "lora_A" in name}
    assert names == adapted


@pytest.mark.parametrize(
    "settings",
    [{}, {"dora": True}, {"lora_modules_to_save": ["lm_head"]}, {"lora_targets": ["embed_tokens", "q_proj"]},
     {"new_tokens": range(14, 16)}, {"fused": True}],
)  # fmt: skip
def test_trained_weights_have_the_names_of_peft_in_files(settings):
    """By them weights are found in checkpoints of other stages, and compared."""
    more = {name: value for name, value in settings.items() if name not in ("fused", "new_tokens")}
    if "fused" in settings:
        model = adapted_moe(lora_targets=["q_proj"], lora_target_parameters=EXPERTS)
    else:
        config = LlamaConfig(
            vocab_size=16, hidden_size=8, intermediate_size=8, num_hidden_layers=1, num_attention_heads=1
        )
        new = settings.get("new_tokens", range(0))
        model = add_lora(LlamaForCausalLM(config), TrainSpec(lora=2, **more), "causal-lm", new_tokens=new)
    trained = {in_adapter(name) for name, each in model.named_parameters() if each.requires_grad}
    assert trained == set(get_peft_model_state_dict(model, save_embedding_layers=False))


MOE = {
    "vocab_size": 16, "hidden_size": 8, "intermediate_size": 8, "moe_intermediate_size": 4, "num_hidden_layers": 1,
    "num_attention_heads": 1, "num_key_value_heads": 1, "head_dim": 8, "num_experts": 2, "num_experts_per_tok": 1,
}  # fmt: skip
EXPERTS = ["mlp.experts.gate_up_proj", "mlp.experts.down_proj"]


def adapted_moe(**settings):
    torch.manual_seed(0)
    model = add_lora(Qwen3MoeForCausalLM(Qwen3MoeConfig(**MOE)), TrainSpec(lora=2, **settings), "causal-lm")
    for name, parameter in model.named_parameters():
        if "lora_B" in name:
            torch.nn.init.normal_(parameter, std=0.3)
    return model.eval()


@pytest.mark.parametrize("rslora", [False, True])
def test_lora_of_parameters_is_merged_right(rslora):
    """Logits of the merged model equal those of the adapter on its base model; the scale is that of the flag."""
    model = adapted_moe(lora_targets=["q_proj"], lora_target_parameters=EXPERTS, lora_alpha=8, rslora=rslora)
    names = {name for name, _ in model.named_parameters() if "lora_A" in name}
    assert len(names) == 3  # q_proj and two stacks of experts
    scale = {layer.scaling["default"] for layer in model.modules() if isinstance(getattr(layer, "scaling", None), dict)}
    assert scale == {8 / 2**0.5 if rslora else 4.0}
    ids = torch.arange(12)[None]
    with torch.no_grad():
        expected = model(input_ids=ids).logits
        with model.disable_adapter():
            assert not torch.allclose(model(input_ids=ids).logits, expected, atol=1e-4)
        merged = model.merge_and_unload()
        assert torch.allclose(merged(input_ids=ids).logits, expected, atol=1e-5)


@pytest.mark.parametrize("settings", [{"lora_targets": ["q_proj"], "lora_target_parameters": EXPERTS}, {}])
def test_export_merges_adapters_of_fused_experts(settings, tmp_path):
    """Also those that peft makes of linear layers by the names of earlier versions of transformers."""
    adapted_moe().unload().save_pretrained(tmp_path / "base")
    model = adapted_moe(**settings)
    model.peft_config["default"].base_model_name_or_path = str(tmp_path / "base")
    model.save_pretrained(tmp_path / "adapter")
    export(ExportRequest(tmp_path / "adapter", tmp_path / "out", None, True, 10**9, False), notify=lambda _: None)
    assert read_header(tmp_path / "out" / FILE).keys() == read_header(tmp_path / "base" / FILE).keys()
    ids = torch.arange(12)[None]
    with torch.no_grad():
        found = AutoModelForCausalLM.from_pretrained(tmp_path / "out")(input_ids=ids).logits
        assert torch.allclose(found, model(input_ids=ids).logits, atol=1e-5)


@pytest.mark.parametrize("settings", [{"dora": True}, {"lora_dropout": 0.5}])
def test_what_peft_cannot_do_for_fused_experts_is_refused_before_loading(settings):
    """Of Qwen3-MoE, peft counts the experts among the linear layers."""
    flag = "--dora" if "dora" in settings else "--lora-dropout"
    spec, config = TrainSpec(lora=2, **settings), Qwen3MoeConfig(**MOE)
    with pytest.raises(UsageError, match=flag) as caught:
        check_adapters(spec, config, "causal-lm")
    targets = caught.value.fix.partition("--lora-targets ")[2].split()
    check_adapters(replace(spec, lora_targets=targets), config, "causal-lm")


def test_unknown_target_parameter_names_the_experts():
    with pytest.raises(UsageError, match=r"mlp\.experts\.gate_up_proj"):
        check_adapters(TrainSpec(lora=2, lora_target_parameters=["experts.up"]), Qwen3MoeConfig(**MOE), "causal-lm")
