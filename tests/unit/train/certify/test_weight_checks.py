"""What certify says of weight files, loading, tied weights and the memory plan's count; each with a fault put in."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import PreTrainedModel
from transformers.models.llama.modeling_llama import LlamaForCausalLM

from dsrun.certify.request import CertifyRequest
from dsrun.models.folder import find
from dsrun.train.certify import small
from dsrun.train.certify.look import weights
from dsrun.train.certify.subject import load_subject
from dsrun.zero.memory.model import count
from tests.unit.train.certify.test_small import PUBLISHED, published

SOUND = [
    "llama-3.1-8b",
    "qwen3-0.6b",
    "gpt2",
    "t5-small",
    "flan-t5-base",
    "bart-large-cnn",
    "mixtral-8x7b",
    "gemma-3-4b",
]
CHECKS = (weights.stored, weights.loaded, weights.tied, weights.counted)


def subject_of(name, folder):
    """Of a model whose files are those of a small one."""
    (folder / "given").mkdir()
    (folder / "scratch").mkdir()
    small.build(small.small_config(published(name, folder)), folder / "given")
    return load_subject(CertifyRequest(model=str(folder / "given")), folder / "scratch")


def change(folder, **changes):
    """Replaces tensors in the files of a model, and takes out those that are None."""
    file = folder / "model.safetensors"
    save_file(
        {name: each for name, each in (load_file(file) | changes).items() if each is not None}, file, {"format": "pt"}
    )


def levels(look, subject):
    return [each.level for each in look(subject)]


def changed_file(subject, **changes):
    """The subject with other files of the real model."""
    change(subject.found.folder, **changes)
    return find(str(subject.found.folder))


@pytest.mark.parametrize("name", SOUND)
def test_nothing_is_found_in_sound_models(name, tmp_path):
    subject = subject_of(name, tmp_path)
    assert [levels(check, subject) for check in CHECKS] == [["info"]] * len(CHECKS)


@pytest.fixture
def llama(tmp_path):
    return subject_of("llama-3.2-1b", tmp_path)


NORM = "model.norm.weight"


@pytest.mark.parametrize(
    "changes",
    [{NORM: None}, {"model.layers.0.mlp.other.weight": torch.ones(4)}, {NORM: torch.ones(7)}],
    ids=["missing", "extra", "shape"],
)
def test_files_that_do_not_fit_are_named(changes, llama):
    changed_file(llama, **changes)
    (finding,) = weights.stored(llama)
    assert (finding.level, finding.code) == ("error", "stored")
    assert next(iter(changes)) in str(finding.message)


def cut_off(folder):
    file = folder / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-100])


def without_a_shard(folder):
    (folder / "model.safetensors").rename(folder / "model-1.safetensors")
    parts = {NORM: "model-1.safetensors", "model.embed_tokens.weight": "model-2.safetensors"}
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": parts}))


@pytest.mark.parametrize("damage", [cut_off, without_a_shard])
def test_files_that_are_damaged_or_missing_are_an_error(damage, llama):
    damage(llama.found.folder)
    subject = replace(llama, found=find(str(llama.found.folder)))
    (finding,) = weights.stored(subject)
    assert (finding.level, finding.code) == ("error", "stored")


@pytest.fixture
def bare(tmp_path):
    """A config without weights."""
    (tmp_path / "config.json").write_text(json.dumps(PUBLISHED["llama-3.2-1b"]))
    (tmp_path / "scratch").mkdir()
    return load_subject(CertifyRequest(model=str(tmp_path)), tmp_path / "scratch")


def test_bare_config_has_no_files_to_compare(bare):
    assert levels(weights.stored, bare) == []
    assert levels(weights.counted, bare) == ["info"]


def test_missing_weight_is_found_where_training_refuses_it(llama):
    change(llama.small, **{NORM: None})
    assert levels(weights.loaded, llama) == ["error"]


@pytest.mark.parametrize("name", [NORM, "model.layers.1.self_attn.q_proj.weight"])
def test_missing_weight_is_found_where_training_does_not_see_it(name, llama, monkeypatch):
    monkeypatch.setattr("dsrun.train.model.build_model.refuse_or_note", lambda *_, **__: [])
    change(llama.small, **{name: None})
    (finding,) = weights.loaded(llama)
    assert finding.level == "error"
    assert name in str(finding.message)


@pytest.mark.parametrize("name", ["model.rotary_emb.inv_freq", "model.layers.0.self_attn.q_proj.weight"])
def test_tensor_that_is_the_same_each_time_but_wrong_is_found(name, llama, monkeypatch):
    """A table that no file holds, and rows of a weight in another order."""
    load = weights.build

    def reversed_tensor(*given, **named):
        model = load(*given, **named)
        tensor = dict((*model.named_parameters(), *model.named_buffers()))[name].data
        tensor.copy_(tensor.flip(0))
        return model

    monkeypatch.setattr(weights, "build", reversed_tensor)
    (finding,) = weights.loaded(llama)
    assert finding.level == "error"
    assert name in str(finding.message)


def test_weight_that_a_save_changes_is_found(llama, monkeypatch):
    original = PreTrainedModel.save_pretrained

    def save(self, folder, **options):
        original(self, folder, **options)
        file = f"{folder}/model.safetensors"
        save_file(load_file(file) | {NORM: torch.ones(64)}, file, {"format": "pt"})

    monkeypatch.setattr(PreTrainedModel, "save_pretrained", save)
    (finding,) = weights.loaded(llama)
    assert finding.level == "error"
    assert NORM in str(finding.message)


def test_tied_weights_that_come_apart_are_found(llama):
    change(llama.small, **{"lm_head.weight": torch.randn(128, 64)})
    (finding,) = weights.tied(llama)
    assert (finding.level, finding.code) == ("error", "tied")


def test_untied_weights_that_become_one_are_found(tmp_path, monkeypatch):
    subject = subject_of("llama-2-7b", tmp_path)
    original = LlamaForCausalLM.get_output_embeddings

    def head(self):
        self.lm_head.weight = self.model.embed_tokens.weight
        return original(self)

    monkeypatch.setattr(LlamaForCausalLM, "get_output_embeddings", head)
    assert levels(weights.tied, subject) == ["error"]


def test_plan_for_another_number_of_parameters_is_found(bare, monkeypatch):
    """As one that counts the tied embedding twice."""
    original = count.describe
    monkeypatch.setattr(count, "describe", lambda config, **_: original({**config, "tie_word_embeddings": False}))
    (finding,) = weights.counted(bare)
    assert (finding.level, finding.code) == ("error", "counted")
