"""The weights of a checkpoint by the names of a model's modules: all of them, bit for bit, or an error."""

from __future__ import annotations

import shutil

import pytest
import torch
from peft import LoraConfig, get_peft_model
from safetensors.torch import load_file, save_file
from transformers import AutoConfig

from dsrun.errors import UsageError
from dsrun.train.checkpoint.plain import ADAPTER, PlainCheckpoint, TrainerOrder, check_adapter, load_weights
from dsrun.train.export.verify import empty_model
from dsrun.train.model.adapters import saved_embeddings
from tests.unit.train.test_whole_models import KINDS, loaded, make_whole, tune
from tests.unit.zero.memory.tiny_models import MODELS, saved

pytestmark = pytest.mark.train

SINGLE = "model.safetensors"


@pytest.mark.parametrize("family", [*KINDS, *(name for name in MODELS if name not in KINDS)])
def test_weights_of_a_family_come_back_as_they_were_saved(family, tmp_path):
    """Those of a text part, too, and by a model that has no weights itself."""
    if family in KINDS:
        make_whole(tmp_path / "base", family)
    else:
        saved(tmp_path / "base", *MODELS[family])
    model, _ = loaded(tmp_path / "base")
    tune(model).save_pretrained(tmp_path / "tuned")
    empty = empty_model(AutoConfig.from_pretrained(tmp_path / "tuned"))
    for like in (model, empty):
        found = load_weights(tmp_path / "tuned", like)
        own = model.state_dict()
        assert found.keys() == own.keys()
        # What is computed, and not saved, is not tuned in training.
        saved_names = own.keys() - set(model._keys_to_ignore_on_save or ())
        assert [name for name in saved_names if not torch.equal(found[name], own[name])] == []


@pytest.fixture(scope="module")
def mixtral(tmp_path_factory):
    folder = tmp_path_factory.mktemp("mixtral")
    saved(folder, *MODELS["mixtral"])
    return folder


EXPERT = "model.layers.1.block_sparse_moe.experts.3.w2.weight"
NORM = "model.norm.weight"


@pytest.mark.parametrize(
    "change",
    [
        lambda file: {name: each for name, each in file.items() if name != NORM},
        lambda file: {name: each for name, each in file.items() if name != EXPERT},
        lambda file: {name: each for name, each in file.items() if ".w2." not in name},
        lambda file: file | {"model.extra.weight": torch.ones(3)},
        lambda file: file | {EXPERT.replace("3", "4"): torch.ones_like(file[EXPERT])},
        lambda file: file | {NORM: torch.ones(3)},
        lambda file: {},
    ],
    ids=["missing", "missing-part", "missing-parts", "left-over", "part-left-over", "other-shape", "none"],
)
def test_weights_that_are_not_the_models_are_refused(change, mixtral, tmp_path):
    shutil.copytree(mixtral, tmp_path, dirs_exist_ok=True)
    file = change(load_file(mixtral / SINGLE))
    (tmp_path / SINGLE).unlink()
    if file:
        save_file(file, tmp_path / SINGLE, metadata={"format": "pt"})
    with pytest.raises(UsageError):
        load_weights(tmp_path, empty_model(AutoConfig.from_pretrained(mixtral)))


def test_checkpoint_for_zero_has_the_weights_and_not_the_reference(mixtral, tmp_path):
    """Experts by the modules' names; DPO's reference, which moves, has the same names in a file of its own."""
    shutil.copytree(mixtral, tmp_path, dirs_exist_ok=True)
    model, _ = loaded(mixtral)
    names = list(dict(model.named_parameters()))
    save_file({name: torch.zeros(1) for name in names}, tmp_path / "reference.safetensors")
    optimizer = torch.optim.AdamW(model.parameters())
    for each in model.parameters():
        each.grad = torch.ones_like(each)
    optimizer.step()
    torch.save(optimizer.state_dict(), tmp_path / "optimizer.pt")
    checkpoint = PlainCheckpoint(tmp_path, TrainerOrder([names], model))
    expected, _ = loaded(mixtral)
    assert [n for n, each in expected.named_parameters() if not torch.equal(checkpoint.read(n), each)] == []


@pytest.mark.parametrize(
    "adapted",
    [
        {"target_modules": ["q_proj", "v_proj"], "use_dora": True},
        {"target_parameters": ["experts.gate_up_proj", "experts.down_proj"]},
        {"modules_to_save": ["lm_head", "embed_tokens"]},
        {"trainable_token_indices": [1, 2]},
        {"target_modules": ["embed_tokens", "q_proj"]},
    ],
    ids=lambda adapted: next(reversed(adapted)),
)
def test_adapter_with_other_weights_than_the_model_is_refused(adapted, mixtral, tmp_path):
    def model():
        return get_peft_model(loaded(mixtral)[0], LoraConfig(r=2, **{"target_modules": ["q_proj"]} | adapted))

    model().save_pretrained(tmp_path, **saved_embeddings(model()))
    check_adapter(tmp_path, model())
    file = load_file(tmp_path / ADAPTER)
    tuned = [name for name in file if not name.endswith("embed_tokens.base_layer.weight")]
    for changed in (
        {name: each for name, each in file.items() if name != tuned[0]},
        file | {"base_model.extra": torch.ones(1)},
    ):
        save_file(changed, tmp_path / ADAPTER)
        with pytest.raises(UsageError):
            check_adapter(tmp_path, model())
