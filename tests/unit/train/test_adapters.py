"""New tokens under LoRA, modules trained whole, rsLoRA, DoRA, and frozen parameters."""

from __future__ import annotations

import pytest
import torch
from peft import PeftModel
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    LlamaConfig,
    LlamaForCausalLM,
    PhiConfig,
    PhiForCausalLM,
    T5Config,
    T5ForConditionalGeneration,
)

from dsrun.errors import UsageError
from dsrun.recipe.recipe_spec import TrainSpec
from dsrun.train.export.export_model import ExportRequest, export
from dsrun.train.model.adapters import add_lora, freeze, new_tokens

ROWS, NEW = 32, range(32, 35)


def llama(*, tied=False):
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=ROWS, hidden_size=16, intermediate_size=32, num_hidden_layers=2, num_attention_heads=2,
        tie_word_embeddings=tied,
    )  # fmt: skip
    return LlamaForCausalLM(config)


def trained(model, steps=3):
    """The model after a few steps on its new tokens."""
    ids = torch.tensor([[32, 1, 33, 2, 34]])
    optimizer = torch.optim.AdamW([each for each in model.parameters() if each.requires_grad], lr=0.1)
    for _ in range(steps):
        optimizer.zero_grad()
        model(input_ids=ids, labels=ids).loss.backward()
        optimizer.step()
    return model


def test_adapter_names_its_base_model_from_any_folder(tmp_path, monkeypatch):
    llama().save_pretrained(tmp_path / "base")
    monkeypatch.chdir(tmp_path)
    spec = TrainSpec(lora=2, model="./base", model_revision="v2")
    config = add_lora(AutoModelForCausalLM.from_pretrained("./base"), spec, "causal-lm").peft_config["default"]
    assert (config.base_model_name_or_path, config.revision) == (str(tmp_path / "base"), "v2")


@pytest.mark.parametrize("tied", [False, True])
def test_rows_of_new_tokens_trained_and_no_others(tied, tmp_path):
    base = llama(tied=tied)
    base.save_pretrained(tmp_path / "base")
    base = AutoModelForCausalLM.from_pretrained(tmp_path / "base")
    base.resize_token_embeddings(35)
    before = base.get_input_embeddings().weight.detach().clone()
    model = trained(add_lora(base, TrainSpec(lora=2), "causal-lm", new_tokens=NEW))
    model.save_pretrained(tmp_path / "adapter", save_embedding_layers=False)
    merged = model.merge_and_unload()
    after = merged.get_input_embeddings().weight
    assert torch.equal(after[:ROWS], before[:ROWS])
    assert (after[ROWS:] - before[ROWS:]).abs().min(dim=1).values.max() > 0.01
    assert (merged.get_output_embeddings().weight is after) == tied
    # What is saved is a row a token and a layer, and not the embedding.
    saved = (tmp_path / "adapter" / "adapter_model.safetensors").stat().st_size
    export(ExportRequest(tmp_path / "adapter", tmp_path / "out", None, True, 10**9, False), notify=lambda _: None)
    exported = AutoModelForCausalLM.from_pretrained(tmp_path / "out")
    ids = torch.arange(35)[None]
    torch.testing.assert_close(exported(ids).logits, merged(ids).logits, rtol=1e-4, atol=1e-5)
    assert saved < (tmp_path / "base" / "model.safetensors").stat().st_size


def test_new_tokens_of_seq2seq_model_trained():
    config = T5Config(
        vocab_size=ROWS,
        d_model=16,
        d_kv=8,
        d_ff=16,
        num_layers=1,
        num_heads=2,
        pad_token_id=0,
        decoder_start_token_id=0,
    )
    model = T5ForConditionalGeneration(config)
    model.resize_token_embeddings(35)
    adapted = add_lora(model, TrainSpec(lora=2), "seq2seq", new_tokens=NEW)
    before = adapted.get_base_model().shared.weight.detach().clone()
    ids = torch.tensor([[32, 1, 33]])
    adapted(input_ids=ids, labels=ids).loss.backward()
    torch.optim.SGD([each for each in adapted.parameters() if each.requires_grad], lr=1.0).step()
    after = adapted.merge_and_unload()
    assert torch.equal(after.shared.weight[:ROWS], before[:ROWS])
    assert not torch.equal(after.shared.weight[32], before[32])
    assert after.encoder.embed_tokens.weight is after.shared.weight


def test_new_tokens_refused_where_the_embedding_is_sharded():
    with pytest.raises(UsageError, match=r"3 new tokens, .*--zero 2, or --lora-modules-to-save embed_tokens lm_head"):
        add_lora(llama(), TrainSpec(lora=2), "causal-lm", new_tokens=NEW, sharded=True)
    spec = TrainSpec(lora=2, lora_modules_to_save=["embed_tokens", "lm_head"])
    assert "embed_tokens" in add_lora(llama(), spec, "causal-lm", new_tokens=NEW, sharded=True).modules_to_save


def test_new_tokens_refused_where_the_output_layer_has_a_bias():
    """peft would train a model without the bias, and merge into one with it."""
    config = PhiConfig(
        vocab_size=35, hidden_size=16, intermediate_size=16, num_hidden_layers=1, num_attention_heads=2,
        tie_word_embeddings=False,
    )  # fmt: skip
    with pytest.raises(UsageError, match=r"an output layer with a bias .*--lora-modules-to-save embed_tokens lm_head"):
        add_lora(PhiForCausalLM(config), TrainSpec(lora=2), "causal-lm", new_tokens=NEW)


class Tokens:
    def __init__(self, count):
        self.count = count

    def __len__(self):
        return self.count

    def get_vocab(self):
        return {str(k): k for k in range(self.count)}


def test_tokens_beyond_the_embedding_are_new():
    assert new_tokens(32, Tokens(35), TrainSpec(model="x")) == range(32, 35)
    assert not new_tokens(32, Tokens(30), TrainSpec(model="x"))


def test_tokens_beyond_the_own_tokenizer_are_new(monkeypatch):
    """An embedding has often more rows than its tokenizer has tokens."""
    monkeypatch.setattr("dsrun.train.model.adapters.AutoTokenizer.from_pretrained", lambda *_, **__: Tokens(30))
    assert new_tokens(32, Tokens(31), TrainSpec(model="x", tokenizer="y", lora=2)) == range(30, 31)
    assert new_tokens(32, Tokens(34), TrainSpec(model="x", tokenizer="y", lora=2)) == range(30, 34)


@pytest.mark.parametrize(
    "spec",
    [
        {"rslora": True},
        {"dora": True},
        {"dora": True, "rslora": True},
        {"lora_modules_to_save": ["lm_head"]},
    ],
    ids=["rslora", "dora", "both", "modules to save"],
)
def test_export_merges_every_kind_of_adapter(spec, tmp_path):
    llama().save_pretrained(tmp_path / "base")
    base = AutoModelForCausalLM.from_pretrained(tmp_path / "base")
    model = add_lora(base, TrainSpec(lora=2, **spec), "causal-lm")
    ids = torch.arange(20)[None]
    optimizer = torch.optim.AdamW([each for each in model.parameters() if each.requires_grad], lr=0.05)
    for _ in range(3):
        model(input_ids=ids, labels=ids).loss.backward()
        optimizer.step()
    model.save_pretrained(tmp_path / "adapter")
    export(ExportRequest(tmp_path / "adapter", tmp_path / "out", None, True, 10**9, False), notify=lambda _: None)
    exported = AutoModelForCausalLM.from_pretrained(tmp_path / "out")(ids).logits
    fresh = AutoModelForCausalLM.from_pretrained(tmp_path / "base")
    plain = fresh(ids).logits
    adapted = PeftModel.from_pretrained(fresh, tmp_path / "adapter")(ids).logits
    torch.testing.assert_close(exported, adapted, rtol=1e-4, atol=1e-4)
    assert (exported - plain).abs().max() > 0.01


@pytest.mark.parametrize(("flag", "name"), [("lora_targets", "--lora-targets"), ("lora_modules_to_save", "--lora-mod")])
def test_unknown_modules_named_with_those_there_are(flag, name):
    with pytest.raises(UsageError, match=rf"^{name}.*this model has no module nope.*q_proj"):
        add_lora(llama(), TrainSpec(lora=2, **{flag: ["nope"]}), "causal-lm")


def test_freeze_by_module_and_pattern():
    model = llama()
    count = freeze(model, ["model.embed_tokens", "model.layers.0.*"])
    frozen = {name for name, each in model.named_parameters() if not each.requires_grad}
    assert "model.embed_tokens.weight" in frozen
    assert "model.layers.0.mlp.up_proj.weight" in frozen
    assert not any(name.startswith(("model.layers.1.", "lm_head")) for name in frozen)
    assert count == sum(each.numel() for each in model.parameters() if not each.requires_grad)


def test_freeze_pattern_without_a_match_names_a_near_one():
    with pytest.raises(UsageError, match=r"--freeze model\.embed_token: .*did you mean model\.embed_tokens\?"):
        freeze(llama(), ["model.embed_token"])


def test_freezing_everything_refused():
    with pytest.raises(UsageError, match="nothing is left to train"):
        freeze(llama(), ["*"])


@pytest.mark.parametrize("kind", ["mamba", "falcon_mamba", "llama"])
def test_all_linear_leaves_out_what_peft_refuses_by_name(kind):
    sizes = {"vocab_size": 32, "hidden_size": 16, "num_hidden_layers": 1, "state_size": 4, "intermediate_size": 32}
    sizes |= {"num_attention_heads": 2, "num_key_value_heads": 1}
    known = AutoConfig.for_model(kind)
    config = type(known)(**{name: value for name, value in sizes.items() if name in known.to_dict()})
    adapted = add_lora(AutoModelForCausalLM.from_config(config), TrainSpec(model_type=kind, lora=2), "causal-lm")
    layers = {name.split(".lora_")[0].rpartition(".")[2] for name, _ in adapted.named_parameters() if ".lora_" in name}
    assert layers
    assert not layers & {"out_proj", "conv1d"}


@pytest.mark.parametrize("kind", ["llama4_text", "phimoe"])
def test_all_linear_leaves_out_a_linear_layer_that_returns_more(kind):
    sizes = {"vocab_size": 32, "hidden_size": 16, "num_hidden_layers": 1, "intermediate_size": 32, "head_dim": 8}
    sizes |= {"num_attention_heads": 2, "num_key_value_heads": 1, "num_local_experts": 2, "intermediate_size_mlp": 32}
    known = AutoConfig.for_model(kind)
    config = type(known)(**{name: value for name, value in sizes.items() if name in known.to_dict()})
    adapted = add_lora(AutoModelForCausalLM.from_config(config), TrainSpec(model_type=kind, lora=2), "causal-lm")
    layers = {name.split(".lora_")[0].rpartition(".")[2] for name, _ in adapted.named_parameters() if ".lora_" in name}
    assert "q_proj" in layers
    assert adapted(torch.arange(4)[None]).logits.shape == (1, 4, 32)


def test_all_linear_takes_a_linear_layer_of_the_model_s_own():
    sizes = {"vocab_size": 32, "hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model("falcon", **sizes))
    adapted = add_lora(model, TrainSpec(model_type="falcon", lora=2), "causal-lm")
    assert any("query_key_value.lora_A" in name for name, _ in adapted.named_parameters())
