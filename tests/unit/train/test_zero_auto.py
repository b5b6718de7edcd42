"""`--zero auto`: the plan's choice goes under what was given. GPUs are described here, not used."""

from __future__ import annotations

import pytest
from transformers import AutoConfig, LlamaConfig, T5Config

from dsrun.errors import UsageError
from dsrun.recipe.resolve import resolve
from dsrun.train.base.distributed import DistributedWorld
from dsrun.train.model import zero_auto
from dsrun.zero.memory.model.shapes import families
from dsrun.zero.memory.plan_request import cluster

GPU = DistributedWorld(rank=0, size=4, local_rank=0, local_size=4, device="cuda")
CPU = DistributedWorld(rank=0, size=2, local_rank=0, local_size=2, device="cpu")
EIGHT_B = LlamaConfig(
    vocab_size=128256, hidden_size=4096, intermediate_size=14336, num_hidden_layers=32, num_attention_heads=32,
    num_key_value_heads=8, max_position_embeddings=8192,
)  # fmt: skip


@pytest.fixture(autouse=True)
def machine(monkeypatch, tmp_path):
    monkeypatch.setenv("DSRUN_CACHE", str(tmp_path))
    monkeypatch.setattr(zero_auto, "_cluster", lambda world: cluster("a100-80:4"))
    monkeypatch.chdir(tmp_path)


def settled(*argv, config=EIGHT_B, world=GPU, precision="bf16"):
    recipe = resolve(["--model", "org/not-here", "--zero", "auto", *argv], None)
    task = "seq2seq" if config.is_encoder_decoder else "causal-lm"
    return zero_auto.resolve_zero_auto(recipe, config, task, precision, world)


def test_zero_auto_shards_8b_model_on_four_gpus():
    recipe, words = settled("--max-length", "1024")
    assert recipe.spec.zero in ("2", "3")
    assert recipe.spec.micro_batch_size >= 1
    assert recipe.sources["zero"] == recipe.sources["micro_batch_size"] == "--zero auto"
    assert words.startswith(f"--zero auto: ZeRO-{recipe.spec.zero}")


def test_zero_auto_without_stage_3_for_small_model():
    small = LlamaConfig(vocab_size=1000, hidden_size=128, intermediate_size=256, num_hidden_layers=2,
                        num_attention_heads=4)  # fmt: skip
    assert settled(config=small)[0].spec.zero != "3"


def test_zero_auto_keeps_given_flags():
    recipe, _ = settled("--offload", "cpu", "--per_device_train_batch_size", "2", "--gradient_checkpointing", "true")
    assert recipe.spec.offload == "cpu"
    assert recipe.spec.micro_batch_size is None
    assert recipe.hf["per_device_train_batch_size"] == 2
    assert recipe.sources["offload"] == "command line"
    recipe, _ = settled("--gradient_checkpointing", "false", "--max-length", "256")
    assert recipe.hf["gradient_checkpointing"] is False


def test_zero_auto_micro_batch_shrinks_with_length():
    """Longer samples leave room for fewer in a micro batch."""
    short, _ = settled("--max-length", "512", "--gradient_checkpointing", "true")
    long, _ = settled("--max-length", "8192", "--gradient_checkpointing", "true")
    assert long.spec.micro_batch_size < short.spec.micro_batch_size
    t5 = T5Config(d_model=1024, d_ff=4096, num_layers=24, num_heads=16)
    narrow, _ = settled("--max-source-length", "128", config=t5)
    wide, _ = settled("--max-source-length", "4096", config=t5)
    assert wide.spec.micro_batch_size < narrow.spec.micro_batch_size


def test_zero_auto_rejects_what_fits_nowhere(monkeypatch):
    monkeypatch.setattr(zero_auto, "_cluster", lambda world: cluster("l4:1"))
    with pytest.raises(UsageError, match="nothing fits 1 × l4") as error:
        settled("--offload", "none", "--max-length", "8192")
    assert error.value.fix


def test_zero_auto_reads_shapes_off_unknown_family():
    """Seven billion weights, of a model that is built for it without storage."""
    cohere = AutoConfig.for_model("cohere", num_hidden_layers=32, hidden_size=4096, num_attention_heads=32)
    assert cohere.model_type not in families()
    recipe, words = settled("--max-length", "1024", config=cohere)
    assert words.endswith("(`dsrun plan` says why)")
    assert recipe.spec.micro_batch_size >= 1
    small, _ = settled(
        "--max-length",
        "1024",
        config=AutoConfig.for_model(
            "cohere", hidden_size=256, intermediate_size=512, num_hidden_layers=2, num_attention_heads=4, vocab_size=999
        ),
    )
    assert small.spec.zero != "3"
    assert small.spec.micro_batch_size > recipe.spec.micro_batch_size


def test_zero_auto_falls_back_to_stage_2():
    """Without GPUs, and for models that cannot be counted, it is stage 2."""
    recipe, words = settled(world=CPU)
    assert (recipe.spec.zero, recipe.spec.micro_batch_size) == ("2", None)
    assert "no GPU" in words
    recipe, words = settled(config=AutoConfig.for_model("xlm"))
    assert recipe.spec.zero == "2"
    assert words == "--zero auto: ZeRO-2, as xlm models cannot be counted without their weights"


def test_zero_auto_in_run_yaml(tmp_path):
    (tmp_path / "run.yaml").write_text("train: {model: m}\nzero: {stage: auto}\n")
    recipe = resolve(["--config", "run.yaml"], tmp_path)
    assert recipe.spec.zero == "auto"
    assert resolve(["--config", "run.yaml", "--zero", "3"], tmp_path).spec.zero == "3"


def test_zero_auto_counts_the_reference_of_dpo():
    """Of all weights, not of LoRA, whose reference is the model itself; a pair has two rows."""

    billion = LlamaConfig(
        vocab_size=32000, hidden_size=2048, intermediate_size=8192, num_hidden_layers=16, num_attention_heads=32
    )

    # With it all of them train under ZeRO-0, so that their micro batches compare.
    recomputing = ("--max-length", "1024", "--gradient_checkpointing", "true")

    def micro_batch(*argv):
        return settled(*recomputing, *argv, config=billion)[0].spec.micro_batch_size

    preferences = ("--task", "dpo", "--train-file", "a.jsonl")
    assert micro_batch(*preferences) < micro_batch() // 2
    assert micro_batch(*preferences, "--lora", "8") == micro_batch("--lora", "8") // 2


def test_zero_auto_counts_the_teacher(tmp_path):
    EIGHT_B.save_pretrained(tmp_path / "teacher")
    (tmp_path / "teacher" / "model.safetensors").touch()
    small = LlamaConfig(
        vocab_size=128256, hidden_size=256, intermediate_size=512, num_hidden_layers=2, num_attention_heads=4
    )
    alone = settled("--max-length", "1024", config=small)[0].spec
    taught = ("--task", "distill", "--teacher", str(tmp_path / "teacher"))
    beside = settled("--max-length", "1024", *taught, config=small)[0].spec
    assert beside.micro_batch_size < alone.micro_batch_size
