"""The numbers of a --deepspeed file: training arguments where no flag gives them, and checked where one does."""

from __future__ import annotations

import json
from functools import partial

import pytest

from dsrun.errors import UsageError
from dsrun.recipe.deepspeed_file import with_deepspeed_read
from dsrun.recipe.resolve import resolve
from dsrun.zero.lint.config_check import refuse_errors

ADAM = {"type": "AdamW", "params": {"lr": 3e-5, "betas": [0.8, 0.9], "eps": 1e-6, "weight_decay": 0.1}}
ZERO = {"zero_optimization": {"stage": 2}}


@pytest.fixture
def read(tmp_path):
    """The recipe of flags and a file; the notes of the linter are in `notes`."""
    notes: list[str] = []

    def call(content, *flags, world_size=2):
        (tmp_path / "ds.json").write_text(content if isinstance(content, str) else json.dumps(content, indent=1))
        asked = resolve(["--model", "m", "--deepspeed", "ds.json", *flags], tmp_path)
        lint = partial(refuse_errors, notify=notes.append)
        return with_deepspeed_read(asked, tmp_path, world_size=world_size, lint=lint)

    call.notes = notes
    return call


def test_numbers_of_the_file_become_training_arguments(read):
    """What the Trainer would compare with its own defaults is taken from the file, and says so."""
    sizes = {"train_batch_size": 64, "train_micro_batch_size_per_gpu": 4}
    found = read({**sizes, **ZERO, "gradient_clipping": 0.5, "optimizer": ADAM})
    assert (found.spec.global_batch_size, found.spec.micro_batch_size) == (64, 4)
    names = ("learning_rate", "adam_beta1", "adam_beta2", "adam_epsilon", "weight_decay", "max_grad_norm")
    assert [found.hf[name] for name in names] == [3e-5, 0.8, 0.9, 1e-6, 0.1, 0.5]
    assert found.sources["global_batch_size"] == found.sources["learning_rate"] == "ds.json"


def test_batch_sizes_become_auto(read):
    """So that a memory fallback may halve the micro batch; accelerate would take one accumulation step otherwise."""
    config = read({"train_batch_size": 64, **ZERO}).hf["deepspeed"]
    assert config == {
        "train_batch_size": "auto",
        "train_micro_batch_size_per_gpu": "auto",
        "gradient_accumulation_steps": "auto",
        **ZERO,
    }


@pytest.mark.parametrize(
    ("block", "message"),
    [
        (
            {"scheduler": {"type": "WarmupLR", "params": {}}},
            "--layer-lr-decay: the scheduler block of ds.json gives all",
        ),
        ({"optimizer": {"type": "Muon", "params": {}}}, "--layer-lr-decay: the optimizer block of ds.json gives all"),
    ],
)
def test_block_with_one_rate_rejects_rates_by_layer(read, block, message):
    with pytest.raises(UsageError, match=message):
        read({**ZERO, **block}, "--layer-lr-decay", "0.9")
    assert read({**ZERO, "optimizer": ADAM}, "--layer-lr-decay", "0.9").spec.layer_lr_decay == 0.9


def test_equal_flags_and_numbers_agree(read):
    found = read({"train_batch_size": 64, **ZERO, "optimizer": ADAM}, "--learning_rate", "3e-5")
    assert found.sources["learning_rate"] == "command line"


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (("--learning_rate", "1e-3"), r"lr is 3e-05, but --learning_rate asks for 0\.001"),
        (("--global-batch-size", "32"), r"train_batch_size is 64, but --global-batch-size asks for 32"),
        (("--max_grad_norm", "2"), r"gradient_clipping is 0\.5, but --max_grad_norm asks for 2"),
    ],
)
def test_flags_that_differ_from_the_file_are_refused(read, flags, message):
    """With the key and its line."""
    with pytest.raises(UsageError, match=message + r".*ds\.json:\d|ds\.json:\d.*" + message):
        read({"train_batch_size": 64, **ZERO, "gradient_clipping": 0.5, "optimizer": ADAM}, *flags)


def test_all_errors_are_named_at_once(read):
    with pytest.raises(UsageError, match=r"^--deepspeed: .*overlap_com .*; also: .*lr is") as caught:
        read({"zero_optimization": {"stage": 2, "overlap_com": True}, "optimizer": ADAM}, "--learning_rate", "1e-3")
    assert "\n" not in str(caught.value)


def test_force_makes_errors_notes(read):
    read({"zero_optimization": {"stage": 2, "overlap_com": True}}, "--force")
    assert any("overlap_com" in note for note in read.notes)


@pytest.mark.parametrize(
    "keys",
    [
        {"tensor_parallel": {"autotp_size": 2}},
        {"expert_parallel": {"enabled": True, "autoep_size": 2}},
        {"sequence_parallel_size": 2},
        {"sequence_parallel_size": 2, "data_parallel_size": 1},
    ],
)
def test_parallelism_is_refused_also_with_force(read, keys):
    """Its ranks would train on rows of their own, and nothing else would stop them."""
    with pytest.raises(UsageError, match=rf"^--deepspeed: {next(iter(keys))}"):
        read({**ZERO, **keys}, "--force", world_size=2)


def test_batch_that_does_not_divide_names_the_file(read):
    with pytest.raises(UsageError, match=r"^ds\.json: global batch 64 does not divide by 3 ranks \(write \"auto\""):
        read({"train_batch_size": 64, **ZERO}, world_size=3)


def test_broken_json_is_explained_by_the_linter(read):
    """It names the comma, where Python's reader names the place after it."""
    with pytest.raises(UsageError, match=r"ds\.json:1:\d+: a comma after the last member.*remove the comma"):
        read('{"zero_optimization": {"stage": 2,}}')
    with pytest.raises(UsageError, match=r"list, not an object"):
        read("[]")


def test_zero3_gathers_weights_on_save(read):
    """Otherwise a run would end without a model/."""
    zero = read({"zero_optimization": {"stage": 3}}).hf["deepspeed"]["zero_optimization"]
    assert zero == {"stage": 3, "stage3_gather_16bit_weights_on_model_save": True}
    assert not any("gather" in note for note in read.notes)
    old = {"stage": 3, "stage3_gather_fp16_weights_on_model_save": True}
    assert read({"zero_optimization": old}).hf["deepspeed"]["zero_optimization"] == old


def test_warnings_of_the_file_are_notes(read):
    read({**ZERO, "gradient_clipping": 1.0, "mine": 1})
    [note] = read.notes
    assert note.startswith("--deepspeed: mine (ds.json:6): DeepSpeed has no key mine")


def test_config_in_a_flag_is_checked(tmp_path):
    asked = resolve(["--model", "m", "--deepspeed", '{"zero_optimization": {"stag": 2}}'], tmp_path)
    with pytest.raises(UsageError, match="has no key stag"):
        with_deepspeed_read(asked, tmp_path, lint=partial(refuse_errors, notify=print))
