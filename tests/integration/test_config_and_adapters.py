"""Runs with values set in a pretrained config, adapters of parameters, Muon, and activations on the host."""

import json
from pathlib import Path

import pytest
import torch
from peft import PeftModel
from transformers import AutoModelForCausalLM, Qwen3MoeConfig, Qwen3MoeForCausalLM

from tests.integration.conftest import dsrun, make_tokenizer, records

pytestmark = pytest.mark.train

FEW = ["--max-steps", "3", "--logging_steps", "1", "--eval_strategy", "no", "--micro-batch-size", "2", "--nproc", "2"]


def short(tiny, pairs, *flags, output, model=None, env=None):
    given = ["--model", model or tiny["llama"], "--train-file", pairs["train"], *FEW, *flags]
    return dsrun(*given, output=output, env=env)


def config_of(folder):
    return json.loads((Path(folder) / "config.json").read_text())


def test_rope_scaling_is_in_final_and_exported_model(tiny, pairs, tmp_path):
    """Under an adapter too, whose base model on disk does not have it."""
    run = tmp_path / "run"
    short(tiny, pairs, "--zero", "2", "--lora", "2", "--rope-scaling", "yarn:4", output=run).ok()
    before = config_of(tiny["llama"])["max_position_embeddings"]
    final = config_of(run / "model")
    assert final["rope_parameters"]["factor"] == 4.0
    assert final["rope_parameters"]["original_max_position_embeddings"] == before
    assert final["max_position_embeddings"] == 4 * before
    checkpoint = config_of(run / "checkpoint-3")
    assert checkpoint["rope_parameters"] == final["rope_parameters"]


@pytest.mark.parametrize("stage", ["2", "3"])
def test_values_that_weights_do_not_fit_are_refused(stage, tiny, pairs, tmp_path):
    flags = ["--zero", stage, "--allow-missing-weights", "--config-override", "intermediate_size=48"]
    done = short(tiny, pairs, *flags, output=tmp_path / "run")
    assert done.code == 2
    last = done.err.strip().splitlines()[-1]
    assert "--config-override intermediate_size=48" in last
    assert "--from-scratch" in last


@pytest.fixture(scope="module")
def moe(tmp_path_factory):
    folder = tmp_path_factory.mktemp("moe")
    tokenizer = make_tokenizer()
    torch.manual_seed(0)
    config = Qwen3MoeConfig(
        vocab_size=len(tokenizer), hidden_size=32, intermediate_size=32, moe_intermediate_size=16, num_hidden_layers=2,
        num_attention_heads=2, num_key_value_heads=1, head_dim=16, num_experts=4, num_experts_per_tok=2,
        max_position_embeddings=512, eos_token_id=tokenizer.eos_token_id, pad_token_id=tokenizer.pad_token_id,
    )  # fmt: skip
    Qwen3MoeForCausalLM(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


@pytest.mark.parametrize("stage", ["2", "3"])
def test_adapters_of_fused_experts_are_merged_right(stage, moe, tiny, pairs, tmp_path):
    run = tmp_path / "run"
    flags = ["--zero", stage, "--bf16", "false", "--lora", "2", "--rslora", "--learning_rate", "1e-2", "--lora-targets"]
    flags += ["q_proj", "--lora-target-parameters", "mlp.experts.gate_up_proj", "mlp.experts.down_proj"]
    short(tiny, pairs, *flags, output=run, model=moe).ok()
    ids = torch.arange(3, 19)[None]
    with torch.no_grad():
        base = AutoModelForCausalLM.from_pretrained(moe)(input_ids=ids).logits
        adapted = PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained(moe), run / "adapter")
        expected = adapted.eval()(input_ids=ids).logits
        merged = AutoModelForCausalLM.from_pretrained(run / "model")(input_ids=ids).logits
    assert not torch.allclose(base, expected, atol=1e-3)
    assert torch.allclose(merged, expected, atol=1e-5)


def test_muon_trains_alike_under_all_stages(tiny, pairs, tmp_path):
    """DeepSpeed's own."""
    # Its Newton-Schulz iteration is the same without the compiler, which takes a minute here.
    env, losses = {"TORCH_COMPILE_DISABLE": "1"}, {}
    for stage in ("1", "2", "3"):
        flags = ["--zero", stage, "--bf16", "false", "--optim", "muon", "--muon-lr", "0.02"]
        losses[stage] = short(tiny, pairs, *flags, output=tmp_path / stage, env=env).ok().losses
    assert losses["1"] == pytest.approx(losses["2"], abs=1e-4)
    assert losses["1"] == pytest.approx(losses["3"], abs=1e-4)
    assert '"Muon"' in (tmp_path / "1/run.json").read_text()


@pytest.mark.parametrize("more", [[], ["--gradient_checkpointing"]], ids=["plain", "checkpointing"])
def test_activations_on_host_leave_losses_as_they_are(more, tiny, pairs, tmp_path):
    plain, host = tmp_path / "plain", tmp_path / "host"
    short(tiny, pairs, "--zero", "2", *more, output=plain).ok()
    short(tiny, pairs, "--zero", "2", "--activation-offload", *more, output=host).ok()
    for key in ("loss", "grad_norm"):
        assert records(plain, key) == records(host, key) != []


def test_superoffload_on_cpus_is_refused_at_once(tiny, pairs, tmp_path):
    done = short(tiny, pairs, "--zero", "3", "--offload", "cpu", "--super-offload", output=tmp_path / "run")
    assert done.code == 2
    assert "SuperOffload" in done.err.strip().splitlines()[-1]
