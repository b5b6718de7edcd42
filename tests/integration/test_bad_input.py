"""What only a worker can find out: one line, the right exit code, and nothing that looks like a result."""

from __future__ import annotations

import json

import pytest

from tests.integration.conftest import dsrun, make_tokenizer

pytestmark = pytest.mark.train


def refused(done, *words, code=2):
    """Assert exit code `code` and exactly one error line holding all words; no traceback, no model."""
    errors = [line for line in done.err.splitlines() if line.startswith("error:")]
    assert done.code == code, done.err
    assert len(errors) == 1, done.err
    assert all(word in errors[0] for word in words), errors[0]
    assert "Traceback" not in done.err
    assert done.out == ""
    assert not (done.folder / "model").exists()


def jsonl(path, *rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def test_dataset_missing_columns_is_refused(tiny, tmp_path):
    data = jsonl(tmp_path / "d.jsonl", {"foo": "w1", "bar": "w2"})
    refused(dsrun("--model", tiny["t5"], "--train-file", data, output=tmp_path / "run"), "foo, bar", "--text-column")


def test_max_train_samples_above_dataset_size_is_refused(tiny, pairs, tmp_path):
    """More samples are asked for than the training data holds."""
    done = dsrun(
        "--model",
        tiny["t5"],
        "--train-file",
        pairs["train"],
        "--max-train-samples",
        "54",
        output=tmp_path / "run",
    )
    refused(done, "--max-train-samples", "54", "53")


def test_token_ids_outside_vocabulary_are_refused(tiny, tmp_path):
    """Pre-tokenized input ids must lie within the embedding."""
    data = jsonl(tmp_path / "d.jsonl", *[{"input_ids": [3, 4, 999]}] * 3)
    refused(dsrun("--model", tiny["llama"], "--train-file", data, output=tmp_path / "run"), "999", "64")


def test_model_config_with_unknown_architecture_is_refused(tmp_path, pairs):
    """A model folder whose config names no known architecture."""
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "config.json").write_text('{"model_type": "no_such_thing"}')
    (tmp_path / "model" / "model.safetensors").write_bytes(b"")
    refused(dsrun("--model", tmp_path / "model", "--train-file", pairs["train"], output=tmp_path / "run"), "model")


def test_hub_offline_error_for_model_tokenizer_and_dataset(tiny, pairs, tmp_path):
    """The tests run with HF_HUB_OFFLINE and an empty cache: something is missing, nothing is wrong."""
    flags = {"--model": tiny["t5"], "--train-file": pairs["train"]}
    for changes, what, instead in (
        ({"--model": "no-org/none"}, "model no-org/none", "--model DIR"),
        ({"--tokenizer": "no-org/none"}, "tokenizer no-org/none", "--tokenizer DIR"),
        ({"--dataset": "no-org/none", "--train-file": None}, "dataset no-org/none", "--train-file FILE"),
    ):
        given = [word for pair in (flags | changes).items() if pair[1] for word in pair]
        done = dsrun(*given, output=tmp_path / what.split()[0])
        fix = f"unset HF_HUB_OFFLINE, or use a mirror by HF_ENDPOINT=URL, --hub modelscope, or local files: {instead}"
        refused(done, f"{what} cannot be fetched from the Hub", fix, code=4)


def test_task_unsupported_by_model_is_refused(tiny, pairs, tmp_path):
    """A decoder-only model cannot be trained for seq2seq."""
    done = dsrun("--model", tiny["llama"], "--task", "seq2seq", "--train-file", pairs["train"], output=tmp_path / "run")
    refused(done, "--task seq2seq", "llama")


def test_fp16_on_t5_is_refused(tiny, pairs, tmp_path):
    done = dsrun("--model", tiny["t5"], "--fp16", "--train-file", pairs["train"], output=tmp_path / "run")
    refused(done, "overflow", "--bf16")


def test_unknown_lora_targets_are_refused(tiny, pairs, tmp_path):
    """LoRA targets that do not exist are refused, and the existing ones are listed."""
    done = dsrun(
        "--model", tiny["llama"], "--lora", "2", "--lora-targets", "nope", "--train-file", pairs["train"],
        output=tmp_path / "run",
    )  # fmt: skip
    refused(done, "nope", "q_proj")


def test_untested_versions_are_told_at_the_start(tiny, pairs, tmp_path):
    """As a later transformers would be found, by its metadata."""
    metadata = tmp_path / "later" / "transformers-5.99.0.dist-info" / "METADATA"
    metadata.parent.mkdir(parents=True)
    metadata.write_text("Metadata-Version: 2.1\nName: transformers\nVersion: 5.99.0\n")
    flags = ["--model", tiny["llama"], "--max-train-samples", "54", "--train-file", pairs["train"]]
    done = dsrun(*flags, output=tmp_path / "run", env={"PYTHONPATH": str(tmp_path / "later")})
    (note,) = [line for line in done.err.splitlines() if "5.99.0" in line]
    assert "transformers 5.23.0" in note


def test_disk_too_small_for_checkpoint_is_refused(tiny, pairs, tmp_path):
    """A file system of 2 MiB, smaller than one checkpoint of this model."""
    small = tmp_path / "small"
    small.mkdir()
    with mounted(small, "2m"):
        done = dsrun(
            "--model", tiny["llama"], "--from-scratch", "--model-config", "hidden_size=128", "--model-config",
            "intermediate_size=512", "--train-file", pairs["train"], output=small / "run",
        )  # fmt: skip
        refused(done, "B free", "--output")


def mounted(folder, size):
    """A small file system on `folder` for a while; needs root, as CI is."""
    import contextlib
    import subprocess

    @contextlib.contextmanager
    def manager():
        subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(folder)], check=True)
        try:
            yield
        finally:
            subprocess.run(["umount", "-l", str(folder)], check=True)

    return manager()


def test_do_eval_without_validation_data_is_refused(tiny, pairs, tmp_path):
    """Evaluation was asked for, but there is no validation data."""
    done = dsrun(
        "--model",
        tiny["t5"],
        "--train-file",
        pairs["train"],
        "--do-train",
        "--do-eval",
        output=tmp_path / "run",
    )
    refused(done, "--validation-file")


def test_unknown_metric_for_best_model_is_refused(tiny, pairs, tmp_path):
    """A metric that no evaluation yields is refused, with the closest name as a suggestion."""
    done = dsrun(
        "--model", tiny["t5"], "--train-file", pairs["train"], "--validation-file", pairs["validation"],
        "--load-best-model-at-end", "--metric-for-best-model", "blue", output=tmp_path / "run",
    )  # fmt: skip
    refused(done, "blue", "did you mean bleu")


def test_position_embeddings_that_cannot_be_resized(pairs, tmp_path):
    """Learned position embeddings that cannot be resized limit the source length."""
    from transformers import BartConfig, BartForConditionalGeneration

    config = BartConfig(
        vocab_size=64, d_model=16, encoder_layers=1, decoder_layers=1, encoder_ffn_dim=16, decoder_ffn_dim=16,
        encoder_attention_heads=2, decoder_attention_heads=2, max_position_embeddings=32, pad_token_id=0,
        eos_token_id=1, bos_token_id=1, decoder_start_token_id=1,
    )  # fmt: skip
    BartForConditionalGeneration(config).save_pretrained(tmp_path / "bart")
    make_tokenizer().save_pretrained(tmp_path / "bart")
    done = dsrun(
        "--model", tmp_path / "bart", "--train-file", pairs["train"], "--resize-position-embeddings",
        "--max-source-length", "48", output=tmp_path / "run",
    )  # fmt: skip
    refused(done, "cannot be resized", "--max-source-length 32")
