"""Command lines of the Transformers example scripts, as their READMEs have them, on local data."""

from __future__ import annotations

import json
import shlex
from pathlib import Path

import pytest
from transformers import AutoModelForCausalLM

from dsrun.runs.records import read_records
from tests.integration.conftest import dsrun, phrase

pytestmark = pytest.mark.train

SHORTER = ["--max_steps", "2", "--bf16", "false"]


@pytest.fixture(scope="module")
def hub(tmp_path_factory, tiny):
    """A folder that holds local stand-ins under the names the READMEs use."""
    root = tmp_path_factory.mktemp("hub")
    dataset_folder(
        root / "wmt16",
        "ro-en",
        [{"translation": {"en": phrase(i, 5), "ro": phrase(i + 1, 4)}} for i in range(24)],
    )
    dataset_folder(
        root / "cnn_dailymail",
        "3.0.0",
        [{"id": str(i), "article": phrase(i, 20), "highlights": phrase(i, 3)} for i in range(24)],
    )
    dataset_folder(root / "wikitext", "wikitext-2-raw-v1", [{"text": phrase(i, 40)} for i in range(60)])
    texts = "\n".join(phrase(i, 30) for i in range(60))
    (root / "train.txt").write_text(texts)
    (root / "valid.txt").write_text(texts)
    return root


def dataset_folder(folder: Path, config: str, rows: list[dict]) -> None:
    """A dataset repository with one configuration, declared in its card as on the Hub."""
    (folder / config).mkdir(parents=True)
    card = f"---\nconfigs:\n- config_name: {config}\n  data_files:\n"
    for split, part in (("train", rows), ("validation", rows[:6]), ("test", rows[:4])):
        (folder / config / f"{split}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in part))
        card += f"  - split: {split}\n    path: {config}/{split}.jsonl\n"
    (folder / "README.md").write_text(card + "---\n")


def run_line(line: str, hub: Path, tmp_path: Path):
    output = tmp_path / "out"
    argv = [word.replace("HUB", str(hub)) for word in shlex.split(line.replace("\\\n", " "))]
    return dsrun(*argv, *SHORTER, output=output).ok()


def test_run_translation_example_command(hub, tiny, tmp_path):
    done = run_line(
        f"""--model_name_or_path {tiny["t5"]} --do_train --do_eval --source_lang en --target_lang ro \\
        --source_prefix "translate English to Romanian: " --dataset_name HUB/wmt16 \\
        --dataset_config_name ro-en --per_device_train_batch_size=4 --per_device_eval_batch_size=4 \\
        --overwrite_output_dir --predict_with_generate""",
        hub,
        tmp_path,
    )
    assert "eval_bleu" in done.evaluations[-1]
    sources = [json.loads(line)["source"] for line in (done.folder / "predictions-validation.jsonl").open()]
    assert len(sources) == 6
    assert "4 = 4 × 1 CPU rank × 1 step" in done.err


def test_run_summarization_example_command_with_predict(hub, tiny, tmp_path):
    done = run_line(
        f"""--model_name_or_path {tiny["t5"]} --do_train --do_eval --do_predict --dataset_name HUB/cnn_dailymail \\
        --dataset_config "3.0.0" --source_prefix "summarize: " --text_column article --summary_column highlights \\
        --max_source_length 16 --max_target_length 8 --num_beams 2 --max_predict_samples 3 \\
        --per_device_train_batch_size=4 --per_device_eval_batch_size=4 --overwrite_output_dir \\
        --predict_with_generate""",
        hub,
        tmp_path,
    )
    assert "eval_rougeL" in done.evaluations[-1]
    assert len((done.folder / "predictions-test.jsonl").read_text().splitlines()) == 3
    assert "24 of 24 examples were cut at 16 tokens" in done.err


def test_run_clm_example_command_on_hub_dataset(hub, tiny, tmp_path):
    done = run_line(
        f"""--model_name_or_path {tiny["llama"]} --dataset_name HUB/wikitext \\
        --dataset_config_name wikitext-2-raw-v1 --per_device_train_batch_size 8 --per_device_eval_batch_size 8 \\
        --do_train --do_eval --block_size 32""",
        hub,
        tmp_path,
    )
    assert done.evaluations[-1]["eval_perplexity"] > 1


def test_run_clm_example_command_on_files_from_scratch(hub, tiny, tmp_path):
    """A model type and overrides instead of a model, as run_clm's README trains GPT-2 from scratch."""
    done = run_line(
        f"""--model_type gpt2 --tokenizer_name {tiny["llama"]} \\
        --config_overrides="n_embd=32,n_head=4,n_layer=2,n_positions=64,vocab_size=64" \\
        --train_file HUB/train.txt --validation_file HUB/valid.txt --per_device_train_batch_size 8 \\
        --do_train --do_eval --warmup_ratio 0.5 --evaluation_strategy steps --eval_steps 1""",
        hub,
        tmp_path,
    )
    model = AutoModelForCausalLM.from_pretrained(done.folder / "model")
    assert model.config.model_type == "gpt2"
    assert model.config.n_embd == 32
    steps = [row["step"] for row in read_records(done.folder / "metrics.jsonl") if "eval_loss" in row]
    assert steps == [1, 2], "--evaluation_strategy was lost, or the last evaluation was made twice"
    assert done.err.count("evaluation_strategy") == 1
