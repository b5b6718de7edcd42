import pytest
from transformers import LlamaConfig

from dsrun.recipe.resolve import resolve
from dsrun.runs.attempts import saved_global_batch
from dsrun.runs.folder import RunFolder
from dsrun.runs.manifest import write_manifest
from dsrun.train.checkpoint.verify import lora_identity, model_identity


def config(**values):
    return LlamaConfig(hidden_size=32, num_attention_heads=4, num_hidden_layers=2, **values)


def test_model_fingerprint_ignores_path_and_dtype():
    """Where a model lies and how it computes is no difference."""
    plain = model_identity(config())
    other = config(use_cache=False, dtype="bfloat16", architectures=["LlamaForCausalLM"])
    other._name_or_path = "/somewhere/else"
    other._attn_implementation = "eager"
    assert model_identity(other) == plain


def test_model_fingerprint_differs_by_config():
    assert model_identity(config(attention_dropout=0.1)) != model_identity(config())
    assert model_identity(config(rope_parameters={"rope_theta": 5e5, "rope_type": "default"})) != model_identity(
        config()
    )


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
def test_lora_fingerprint(flags, words, tmp_path):
    """Adapters differ by rank, alpha and target layers."""
    assert lora_identity(resolve(["--model", "demo-t5", *flags], tmp_path).spec) == words


def test_saved_global_batch_of_resumed_checkpoint(tmp_path):
    for step, facts in ((5, {"global_batch": 16}), (10, {"global_batch": 32}), (15, None)):
        (tmp_path / f"checkpoint-{step}").mkdir()
        if facts:
            write_manifest(tmp_path / f"checkpoint-{step}", facts)
    assert saved_global_batch(RunFolder(tmp_path), "auto") == 32
    assert saved_global_batch(RunFolder(tmp_path), "never") is None
    assert saved_global_batch(RunFolder(tmp_path / "other"), str(tmp_path / "checkpoint-5")) == 16


def test_saved_global_batch_after_checkpoint_rotation(tmp_path):
    """It stays when the checkpoint that a run began with has been deleted, as rotation does in the run's own folder."""
    for step, facts in (
        (10, {"global_batch": 16, "signed": ["us"]}),
        (15, {"global_batch": 32, "signed": ["them"]}),
    ):
        (tmp_path / f"checkpoint-{step}").mkdir()
        write_manifest(tmp_path / f"checkpoint-{step}", facts)
    began_with = str(tmp_path / "checkpoint-5")
    assert saved_global_batch(RunFolder(tmp_path), began_with, {"us"}) == 16
    assert saved_global_batch(RunFolder(tmp_path), began_with) is None


@pytest.mark.parametrize("facts", [None, {}, {"global_batch": "32"}, {"global_batch": 0}])
def test_checkpoint_without_saved_global_batch(facts, tmp_path):
    (tmp_path / "checkpoint-5").mkdir()
    if facts is not None:
        write_manifest(tmp_path / "checkpoint-5", facts)
    assert saved_global_batch(RunFolder(tmp_path), "auto") is None
