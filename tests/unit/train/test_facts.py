import pytest
from transformers import LlamaConfig

from dsrun.recipe.resolve import resolve
from dsrun.runs.manifest import write_manifest
from dsrun.train.facts import lora_identity, model_identity, saved_global_batch


def config(**values):
    return LlamaConfig(hidden_size=32, num_attention_heads=4, num_hidden_layers=2, **values)


def test_where_a_model_lies_and_how_it_computes_is_no_difference():
    plain = model_identity(config())
    other = config(use_cache=False, dtype="bfloat16", architectures=["LlamaForCausalLM"])
    other._name_or_path = "/somewhere/else"
    other._attn_implementation = "eager"
    assert model_identity(other) == plain


def test_what_a_model_is_makes_a_difference():
    assert model_identity(config(attention_dropout=0.1)) != model_identity(config())
    assert model_identity(
        config(rope_parameters={"rope_theta": 5e5, "rope_type": "default"})
    ) != model_identity(config())


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        ([], "none"),
        (["--lora", "4"], "rank 4, alpha 8, on every linear layer"),
        (["--lora", "4", "--lora-targets", "all-linear"], "rank 4, alpha 8, on every linear layer"),
        (["--lora", "4", "--lora-alpha", "8"], "rank 4, alpha 8, on every linear layer"),
        (["--lora", "8", "--lora-alpha", "4", "--lora-targets", "v", "q"], "rank 8, alpha 4, on q, v"),
    ],
)
def test_adapters_are_told_apart_by_what_makes_them_others(flags, words, tmp_path):
    assert lora_identity(resolve(["--model", "demo-t5", *flags], tmp_path).spec) == words


def test_the_global_batch_of_what_a_run_goes_on_from(tmp_path):
    for step, facts in ((5, {"global_batch": 16}), (10, {"global_batch": 32}), (15, None)):
        (tmp_path / f"checkpoint-{step}").mkdir()
        if facts:
            write_manifest(tmp_path / f"checkpoint-{step}", facts, durable=False)
    assert saved_global_batch(tmp_path, "auto") == 32
    assert saved_global_batch(tmp_path, "never") is None
    assert saved_global_batch(tmp_path / "other", str(tmp_path / "checkpoint-5")) == 16


def test_the_global_batch_stays_when_the_checkpoint_that_a_run_began_with_has_been_deleted(tmp_path):
    """Rotation does so where it lay in the run's own folder."""
    for step, facts in (
        (10, {"global_batch": 16, "signed": ["us"]}),
        (15, {"global_batch": 32, "signed": ["them"]}),
    ):
        (tmp_path / f"checkpoint-{step}").mkdir()
        write_manifest(tmp_path / f"checkpoint-{step}", facts, durable=False)
    began_with = str(tmp_path / "checkpoint-5")
    assert saved_global_batch(tmp_path, began_with, {"us"}) == 16
    assert saved_global_batch(tmp_path, began_with) is None


@pytest.mark.parametrize("facts", [None, {}, {"global_batch": "32"}, {"global_batch": 0}])
def test_a_checkpoint_that_does_not_say_its_global_batch(facts, tmp_path):
    (tmp_path / "checkpoint-5").mkdir()
    if facts is not None:
        write_manifest(tmp_path / "checkpoint-5", facts, durable=False)
    assert saved_global_batch(tmp_path, "auto") is None
