"""`dsrun export` of folders made by hand: adapters of a grown vocabulary or without a base, odd dtypes, leftovers."""

from __future__ import annotations

import json
from pathlib import Path

import huggingface_hub.constants
import pytest
import torch
from peft import LoraConfig, PeftModel, get_peft_model
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaConfig, LlamaForCausalLM

from dsrun.errors import UsageError
from dsrun.train.export import export_model as run
from dsrun.train.export.export_model import ExportRequest
from tests.integration.conftest import make_tokenizer

pytestmark = pytest.mark.train

ROWS, GROWN = 64, 70


def make_base(folder, *, tied=False, dtype=torch.float32):
    config = LlamaConfig(
        vocab_size=ROWS, hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4,
        tie_word_embeddings=tied,
    )  # fmt: skip
    LlamaForCausalLM(config).to(dtype).save_pretrained(folder)
    make_tokenizer().save_pretrained(folder)
    return folder


def make_adapter(folder, base, *, rows=ROWS):
    """As `dsrun train --lora` saves one for a tokenizer of `rows` tokens."""
    model = AutoModelForCausalLM.from_pretrained(base)
    if rows != ROWS:
        model.resize_token_embeddings(rows)
    adapted = get_peft_model(model, LoraConfig(r=2, target_modules="all-linear", task_type="CAUSAL_LM"))
    for name, parameter in adapted.named_parameters():
        if "lora_B" in name:
            torch.nn.init.normal_(parameter)
    adapted.save_pretrained(folder)
    return folder


def export(source, to, *, dtype=None, merge=False, force=False):
    said = []
    run.export(ExportRequest(Path(source), Path(to), dtype, merge, 10**9, force), notify=said.append)
    return said


@pytest.mark.parametrize("tied", [False, True])
def test_export_lora_adapter_with_resized_vocabulary(tied, tmp_path):
    """More tokens than the base model has: peft saves the whole embedding, and the base's config has the old size."""
    base = make_base(tmp_path / "base", tied=tied)
    adapter = make_adapter(tmp_path / "adapter", base, rows=GROWN)
    assert export(adapter, tmp_path / "out") == []
    saved = load_file(adapter / "adapter_model.safetensors")
    assert all(
        torch.equal(value, saved[name])
        for name, value in load_file(tmp_path / "out" / "adapter_model.safetensors").items()
    )
    export(adapter, tmp_path / "merged", merge=True)
    merged = AutoModelForCausalLM.from_pretrained(tmp_path / "merged")
    grown = AutoModelForCausalLM.from_pretrained(base)
    grown.resize_token_embeddings(GROWN)
    theirs = PeftModel.from_pretrained(grown, str(adapter)).merge_and_unload()
    assert merged.config.vocab_size == GROWN
    assert merged.state_dict().keys() == theirs.state_dict().keys()
    for name, value in theirs.state_dict().items():
        assert torch.allclose(merged.state_dict()[name], value, atol=1e-6), name


def test_export_lora_adapter_without_base_model(tmp_path, monkeypatch):
    """On a machine without a network, and with a base model from the Hub."""
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    adapter = make_adapter(tmp_path / "adapter", make_base(tmp_path / "base"))
    config = json.loads((adapter / "adapter_config.json").read_text())
    config["base_model_name_or_path"] = "nobody/nothing"
    (adapter / "adapter_config.json").write_text(json.dumps(config))
    assert export(adapter, tmp_path / "out") == []
    assert (tmp_path / "out" / "adapter_model.safetensors").is_file()


def test_export_of_unknown_dtype_is_refused(tmp_path):
    """A dtype that is not known is named in the error."""
    base = make_base(tmp_path / "base")
    weights = load_file(base / "model.safetensors")
    weights["lm_head.weight"] = weights["lm_head.weight"].to(torch.float8_e4m3fn)
    save_file(weights, base / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(UsageError, match=r"model.safetensors holds weights in F8_E4M3"):
        export(base, tmp_path / "out")


@pytest.mark.parametrize("config", [None, {"model_type": "own", "auto_map": {"AutoConfig": "own.Config"}}])
def test_export_of_unknown_model_is_refused_in_one_line(config, tmp_path):
    base = make_base(tmp_path / "base")
    (base / "config.json").unlink()
    if config:
        (base / "config.json").write_text(json.dumps(config))
        (base / "own.py").write_text("raise SystemExit('run')")
    with pytest.raises(UsageError, match=r"base: its model is not known: .*base") as caught:
        export(base, tmp_path / "out")
    assert "\n" not in str(caught.value)


def test_export_cleans_up_after_killed_export(tmp_path):
    """What a dead export left behind is no obstacle."""
    base = make_base(tmp_path / "base")
    for name in ("out", ".out.old", ".out.partial"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "left").touch()
    export(base, tmp_path / "out", force=True)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["base", "out"]
    assert not (tmp_path / "out" / "left").exists()


def test_export_keeps_all_chat_templates(tmp_path):
    """All chat templates of the tokenizer are exported."""
    base = make_base(tmp_path / "base")
    tokenizer = AutoTokenizer.from_pretrained(base)
    tokenizer.chat_template = {"default": "{{ messages }}", "rag": "{{ documents }}"}
    tokenizer.save_pretrained(base)
    export(base, tmp_path / "out")
    assert AutoTokenizer.from_pretrained(tmp_path / "out").chat_template == tokenizer.chat_template


@pytest.mark.parametrize(("saved", "words"), [(torch.bfloat16, "saved in bfloat16"), (torch.float32, None)])
def test_export_fp32_of_rounded_weights_is_reported(saved, words, tmp_path):
    """An fp32 export made from rounded weights says so."""
    said = export(make_base(tmp_path / "base", dtype=saved), tmp_path / "out", dtype="fp32")
    assert (words in said[0]) if words else said == []
