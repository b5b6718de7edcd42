"""The options of DeepSpeed's configuration that `dsrun config` has and `dsrun train` has not, each with the reason."""

from dataclasses import fields

import pytest

from dsrun.engine_options import EngineOptions
from dsrun.errors import UsageError
from dsrun.options import key_of
from dsrun.recipe.flags import own_flags
from dsrun.recipe.resolve import resolve
from dsrun.zero.generate.config import config_of_flags
from dsrun.zero.generate.spec import options

# Options of `dsrun config` alone -> what `dsrun train` has instead, or why it has none.
INSTEAD = {
    "target": "always the Trainer",
    "gpu": "the GPUs of this machine",
    "gpus": "--nproc, or the launcher",
    "offload_optimizer": "--offload",
    "offload_param": "--offload",
    "precision": "--bf16, --fp16",
    "torch_autocast": "ZeRO's own mixed precision is what is tested",
    "optimizer": "--optim",
    "lr": "--learning_rate",
    "betas": "--adam_beta1, --adam_beta2",
    "eps": "--adam_epsilon",
    "weight_decay": "--weight_decay",
    "scheduler": "--lr_scheduler_type",
    "warmup_steps": "--warmup_steps",
    "total_steps": "--max_steps",
    "gradient_clipping": "--max_grad_norm",
    "accumulation": "--gradient_accumulation_steps",
    "autotp": "refused: the GPUs of a group would read different rows",
    "autoep": "refused: DeepSpeed stops on the experts of Transformers 5",
    "deepcompile": "the program must call engine.compile()",
    "activation_checkpointing": "--gradient_checkpointing",
}
BOTH = {"model", "stage", "global_batch_size", "micro_batch_size", "sequence_parallel"}
"""Of the same name in both, and declared in each for itself."""


def test_every_option_of_config_is_one_of_train_or_has_a_reason():
    train = set(own_flags())
    for name, option in options().items():
        if name not in INSTEAD:
            assert key_of(option) in train, f"{name}: declare it in EngineOptions, or say here what train has instead"
    assert not set(INSTEAD) - set(options())
    assert {each.name for each in fields(EngineOptions)} == set(options()) - set(INSTEAD) - BOTH


@pytest.mark.parametrize(
    ("words", "key", "value"),
    [
        (["--hpz", "2"], ("zero_optimization", "zero_hpz_partition_size"), 2),
        (["--qwz", "--qgz"], ("zero_optimization", "zero_quantized_gradients"), True),
        (["--no-overlap-comm"], ("zero_optimization", "overlap_comm"), False),
        (["--set", "zero_optimization.sub_group_size=1e8"], ("zero_optimization", "sub_group_size"), 100_000_000),
        (["--grad-accum-dtype", "fp32"], ("data_types", "grad_accum_dtype"), "fp32"),
        (["--optim", "muon", "--muon-lr", "0.02"], ("optimizer", "params", "muon_lr"), 0.02),
        (["--offload", "cpu", "--super-offload"], ("zero_optimization", "offload_optimizer", "super_offload"), True),
        (
            ["--offload", "optimizer", "--no-pin-memory"],
            ("zero_optimization", "offload_optimizer", "pin_memory"),
            False,
        ),
    ],
)
def test_flags_of_train_reach_the_configuration(words, key, value, tmp_path):
    recipe = resolve(["--model", "demo-llama", "--zero", "3", *words], tmp_path)
    found = config_of_flags(
        3, offload=recipe.spec.offload, optim=recipe.hf.get("optim"), options=recipe.spec, hidden_size=64
    )
    for name in key:
        found = found[name]
    assert found == value


def test_zenflow_under_stage_2(tmp_path):
    spec = resolve(["--model", "m", "--zero", "2", "--offload", "cpu", "--zenflow"], tmp_path).spec
    made = config_of_flags(2, offload="cpu", optim=None, options=spec, hidden_size=64)
    assert made["zero_optimization"]["zenflow"]


@pytest.mark.parametrize("words", [["--hpz", "2"], ["--muon-lr", "0.1"], ["--pin-memory"], ["--set", "nonsense=1"]])
def test_options_that_do_not_go_together_are_refused_before_ranks(words, tmp_path, monkeypatch):
    from dsrun.launch.node.checked_recipe import with_deepspeed_checked

    monkeypatch.chdir(tmp_path)
    recipe = resolve(["--model", "demo-llama", "--zero", "2", *words], tmp_path)
    with pytest.raises(UsageError, match=words[0]):
        with_deepspeed_checked(recipe, 2)


def test_texts_do_not_say_what_the_commands_add():
    for name, option in options().items():
        assert "may be repeated" not in option.metadata["help"], name


@pytest.mark.parametrize("word", ["--super-offload", "--qwz", "--qgz"])
def test_what_only_gpus_can_do_is_refused_beside_use_cpu(word, tmp_path):
    words = ["--model", "m", "--zero", "3", "--offload", "cpu", word]
    resolve(words, tmp_path)
    with pytest.raises(UsageError, match=word):
        resolve([*words, "--use-cpu"], tmp_path)


@pytest.mark.parametrize("word", [["--hpz", "2"], ["--qwz"], ["--super-offload"], ["--zenflow"], ["--no-pin-memory"]])
def test_the_fix_of_a_missing_stage_or_place_works(word, tmp_path, monkeypatch):
    """Flags are added, and replaced, as the errors say, until there is none."""
    from dsrun.launch.node.checked_recipe import with_deepspeed_checked

    monkeypatch.chdir(tmp_path)
    given = {"--model": "m", "--zero": "0"}
    for _ in range(3):
        flat = [part for pair in given.items() for part in pair]
        try:
            with_deepspeed_checked(resolve([*flat, *word], tmp_path), 2)
            break
        except UsageError as error:
            flag, value = error.fix.rpartition("--")[2].split()[:2]
            assert given.get(f"--{flag}") != value
            given[f"--{flag}"] = value
    else:
        pytest.fail(f"{given}: still refused")
