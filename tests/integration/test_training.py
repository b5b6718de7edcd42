"""Whole runs with real engines: what is trained, evaluated, saved and recorded."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from itertools import product
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, AutoModelForSeq2SeqLM

from dsrun.runs.records import read_records
from dsrun.system.net import free_port
from tests.forkserver.client import HEAVY
from tests.integration.conftest import FP32, SHORT, Ran, dsrun, make_tokenizer, many_runs, phrase, records
from tests.processes import alive, by_name, wait_for

pytestmark = pytest.mark.train


@pytest.mark.parametrize(("kind", "stage"), list(product(("t5", "llama"), ("0", "1", "2", "3"))))
def test_resume_equals_uninterrupted_run(kind, stage, tiny, pairs, tmp_path):
    """Same losses to the bit after the checkpoint, same final weights to the bit; accumulation and a second epoch."""
    flags = [
        "--model", tiny[kind], "--zero", stage, "--train-file", pairs["train"], *SHORT, "--micro-batch-size", "2",
        "--max-steps", "9", "--save-steps", "3", "--warmup-steps", "2", "--max-grad-norm", "0.5",
    ]  # fmt: skip
    if kind == "t5":
        flags += ["--from-scratch", "--model-config", "dropout_rate=0.1"]
    whole, resumed = tmp_path / "whole", tmp_path / "resumed"
    many_runs([[*flags, "--output", str(whole)]], ranks=2, scratch=tmp_path)
    resumed.mkdir()
    shutil.copytree(whole / "checkpoint-6", resumed / "checkpoint-6")
    shutil.copy(whole / "run.json", resumed)
    many_runs([[*flags, "--output", str(resumed)]], ranks=2, scratch=tmp_path)
    assert records(resumed, "loss") == records(whole, "loss")[-len(records(resumed, "loss")) :]
    assert [row["kind"] for row in read_records(resumed / "events.jsonl")][:2] == ["start", "resume"]
    ours, theirs = (load_file(run / "model" / "model.safetensors") for run in (resumed, whole))
    assert all(torch.equal(ours[name], theirs[name]) for name in theirs)
    auto = AutoModelForSeq2SeqLM if kind == "t5" else AutoModelForCausalLM
    loaded = auto.from_pretrained(resumed / "model").state_dict()
    assert all(torch.equal(loaded[name], ours[name]) for name in ours)


@pytest.mark.parametrize("stage", ["2", "3"])
def test_lora_adapter_and_merged_model_agree(stage, tiny, pairs, tmp_path):
    """Both the adapter and the merged model are saved, and their logits agree."""
    from peft import PeftModel

    flags = ["--model", tiny["llama"], "--zero", stage, "--train-file", pairs["train"], "--lora", "4", *SHORT]
    many_runs([[*flags, "--max-steps", "4", "--output", str(tmp_path / "run")]], ranks=2, scratch=tmp_path)
    base = AutoModelForCausalLM.from_pretrained(tiny["llama"])
    ids = torch.arange(3, 20)[None]
    plain = base(ids).logits
    adapted = PeftModel.from_pretrained(base, tmp_path / "run" / "adapter")(ids).logits
    merged = AutoModelForCausalLM.from_pretrained(tmp_path / "run" / "model")(ids).logits
    torch.testing.assert_close(merged, adapted, rtol=1e-4, atol=1e-4)
    assert (merged - plain).abs().max() > 1e-3, "the adapter learned nothing"


def test_console_output_of_a_run_and_model_path_on_stdout(tmp_path):
    """stdout is the model's path, stderr what a user wants to read, everything else is in one log a rank."""
    done = dsrun(
        "--model", "demo-t5", "--zero", "2", "--nproc", "2", "--max-steps", "4", "--max-eval-samples", "16",
        output=tmp_path / "run",
    ).ok()  # fmt: skip
    assert done.out == f"{tmp_path / 'run' / 'model'}\n"
    header = ("model", "task", "parallel", "batch", "precision", "data", "output")
    assert [sum(line.split()[:1] == [word] for line in done.err.splitlines()) for word in header] >= [1] * 7
    assert "256 = 128 × 2 CPU ranks × 1 step" in done.err
    for noise in ("Warning", "warning", "[transformers]", "INFO", "Traceback", "{", "huggingface"):
        assert noise not in done.err
    # What is being done, while nothing is printed, is not kept; what goes on inside is only kept.
    shown = [line for line in done.err.splitlines() if not re.search(r" …( \d+ s)?$", line)]
    kept = (tmp_path / "run" / "console.log").read_text().splitlines()
    assert [line for line in kept if line in shown] == shown[1:]
    assert [line for line in shown if line not in kept] == shown[:1]
    assert {line.split()[0] for line in kept if line not in shown} == {"packing", "speed"}
    assert {"rank-0.attempt-0.log", "rank-1.attempt-0.log"} <= {f.name for f in (tmp_path / "run/logs").iterdir()}


@pytest.mark.exhaustive
def test_train_under_torchrun_runs_as_worker(tiny, pairs, tmp_path):
    """torchrun starts `dsrun train` as a worker."""
    argv = [
        sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "--master-port", str(free_port()),
        "-m", "--", "dsrun", "train", "--model", tiny["llama"], "--use-cpu", "--zero", "1",
        "--train-file", pairs["train"], *SHORT, "--max-steps", "2", "--output", str(tmp_path / "run"),
    ]  # fmt: skip
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    ran = Ran(done, tmp_path / "run").ok()
    assert "ZeRO-1 on 2 CPU ranks" in ran.err
    assert ran.err.count("ZeRO-1 on") == 1
    assert len(ran.losses) == 2


def test_best_checkpoint_and_early_stopping(tiny, pairs, tmp_path):
    """A learning rate that ruins the model: the first evaluation stays the best, training stops, that model is kept."""
    done = dsrun(
        "--model", tiny["t5"], "--train-file", pairs["train"], "--validation-file", pairs["validation"], *FP32,
        "--learning-rate", "2.0", "--max-grad-norm", "0", "--global-batch-size", "8", "--early-stopping", "2",
        "--eval-strategy", "steps", "--eval-steps", "1", "--max-steps", "20", "--lr-scheduler-type", "constant",
        "--predict-with-generate", "false", "--eval-on-start", "false",
        output=tmp_path / "run",
    ).ok()  # fmt: skip
    during = [row for row in done.evaluations if row["step"]]
    best = min(row["eval_loss"] for row in during)
    assert max(row["step"] for row in during) < 20
    assert done.evaluations[-1]["eval_loss"] == pytest.approx(best, rel=1e-4), "the final model is not the best one"
    assert "best" in done.err


def test_metric_for_best_model_perplexity_takes_lowest(tiny, pairs, tmp_path):
    """Named without early stopping: the stock Trainer would take the largest of the ruined model's for the best."""
    done = dsrun(
        "--model", tiny["t5"], "--train-file", pairs["train"], "--validation-file", pairs["validation"], *FP32,
        "--learning-rate", "2.0", "--max-grad-norm", "0", "--global-batch-size", "8", "--max-steps", "3",
        "--eval-strategy", "steps", "--eval-steps", "1", "--lr-scheduler-type", "constant",
        "--predict-with-generate", "false", "--metric-for-best-model", "perplexity", output=tmp_path / "run",
    ).ok()  # fmt: skip
    best = min(done.evaluations, key=lambda row: row["eval_perplexity"])
    assert best["step"] < 3
    assert re.search(rf"best +perplexity .* at step {best['step']}\n", done.err)


def test_early_stopped_run_resumes_with_more_patience(tiny, pairs, tmp_path):
    """Checkpoints every other evaluation only: the one that marks the end is written for that."""
    flags = [
        "--model", tiny["t5"], "--train-file", pairs["train"], "--validation-file", pairs["validation"], *SHORT[:4],
        "--learning-rate", "2.0", "--max-grad-norm", "0", "--eval-strategy", "steps", "--eval-steps", "1",
        "--save-steps", "2", "--max-steps", "20", "--lr-scheduler-type", "constant", "--logging-steps", "1",
        "--predict-with-generate", "false",
    ]  # fmt: skip
    first = dsrun(*flags, "--early-stopping", "4", output=tmp_path / "run").ok()
    weights, trained = load_file(tmp_path / "run" / "model" / "model.safetensors"), first.losses
    assert "stopped early" in first.err
    assert "already finished" not in first.err
    again = dsrun(*flags, "--early-stopping", "4", output=tmp_path / "run").ok()
    assert again.losses == trained, "it trained on"
    assert "already finished" in again.err
    assert "--early-stopping" in again.err
    after = load_file(tmp_path / "run" / "model" / "model.safetensors")
    assert all(torch.equal(after[name], weights[name]) for name in weights)
    patient = dsrun(*flags, "--early-stopping", "6", output=tmp_path / "run").ok()
    assert len(patient.losses) == len(trained) + 2
    assert "already finished" not in patient.err


def test_profile_writes_trace_and_table(tiny, pairs, tmp_path):
    done = dsrun(
        "--model", tiny["llama"], "--train-file", pairs["train"], *SHORT, "--max-steps", "6", "--profile", "2",
        output=tmp_path / "run",
    ).ok()  # fmt: skip
    trace = json.loads((tmp_path / "run" / "profile" / "trace-rank0.json").read_text())
    assert any("backward" in event.get("name", "").lower() for event in trace["traceEvents"])
    assert "Self CPU" in done.err


def test_tensorboard_writes_on_rank_0_into_run_folder(tiny, pairs, tmp_path):
    dsrun(
        "--model", tiny["llama"], "--train-file", pairs["train"], *SHORT, "--max-steps", "2", "--nproc", "2",
        "--report-to", "tensorboard", output=tmp_path / "run",
    ).ok()  # fmt: skip
    files = list(tmp_path.rglob("events.out.tfevents*"))
    # The writer's process id is part of the name; a second file is rank 0's own, of the final evaluation.
    assert len({file.name.split(".")[5] for file in files}) == 1
    assert {file.parent for file in files} == {tmp_path / "run" / "tensorboard"}


def test_killed_worker_ends_run_and_leaves_no_processes(tiny, pairs, tmp_path):
    argv = [
        sys.executable, "-m", "dsrun", "train", "--model", tiny["llama"], "--train-file", pairs["train"], *SHORT,
        "--max-steps", "100000", "--nproc", "2", "--max-restarts", "0", "--output", str(tmp_path / "run"),
    ]  # fmt: skip
    with HEAVY.popen(argv, stderr=subprocess.PIPE, text=True) as process:
        try:
            wait_for(lambda: len(records_or_nothing(tmp_path / "run")) > 2)
            all_gather_object = by_name(process.pid)
            all_gather_object["rank-1"].kill()
            err = process.communicate(timeout=300)[1]
        finally:
            process.kill()
    assert process.returncode == 128 + signal.SIGKILL
    assert "SIGKILL" in err.splitlines()[-2] + err.splitlines()[-1]
    assert not [name for name, process in all_gather_object.items() if alive(process)]


def records_or_nothing(folder: Path) -> list[float]:
    return records(folder, "loss") if (folder / "metrics.jsonl").exists() else []


def chats(tmp_path):
    """Conversations, and a copy of the tiny Llama's tokenizer that has a template for them."""
    rows = [
        {"messages": [{"role": "user", "content": f"w{i} w3"}, {"role": "assistant", "content": f"w{i + 1}"}]}
        for i in range(20)
    ]
    (tmp_path / "chats.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    tokenizer = make_tokenizer()
    tokenizer.chat_template = (
        "{% for m in messages %}{{ 'w9 ' if m.role == 'user' else 'w10 ' }}{{ m.content }} {{ eos_token }} {% endfor %}"
        "{% if add_generation_prompt %}w10 {% endif %}"
    )
    tokenizer.save_pretrained(tmp_path / "tokenizer")
    return ["--train-file", str(tmp_path / "chats.jsonl"), "--tokenizer", str(tmp_path / "tokenizer")]


def token_file(tmp_path):
    import numpy as np

    np.arange(3000).astype(np.uint16).__mod__(64).tofile(tmp_path / "train.bin")
    return ["--train_data_path", str(tmp_path / "train.bin"), "--block-size", "32"]


def stream(tmp_path):
    (tmp_path / "s.jsonl").write_text("".join(json.dumps({"text": f"w{i % 50} w2 w3"}) + "\n" for i in range(300)))
    return ["--train-file", str(tmp_path / "s.jsonl"), "--block-size", "16", "--streaming"]


@pytest.mark.parametrize("data", [chats, token_file, stream], ids=["chats", "bin", "stream"])
def test_causal_data_losses_equal_on_one_and_two_ranks(data, tiny, tmp_path):
    """Chats, a token file and a stream each give one loss curve on one and two ranks."""
    flags = ["--model", tiny["llama"], *data(tmp_path), *SHORT, "--max-steps", "5"]
    for ranks in (1, 2):
        many_runs([[*flags, "--output", str(tmp_path / str(ranks))]], ranks=ranks, scratch=tmp_path)
    one, two = (records(tmp_path / str(ranks), "loss") for ranks in (1, 2))
    assert len(one) == 5
    assert two == pytest.approx(one, rel=1e-4)


def test_prepare_fills_tokenization_cache_of_run(tiny, pairs, tmp_path, monkeypatch):
    """`dsrun prepare` with the run's flags fills the cache that the run finds."""
    monkeypatch.setenv("DSRUN_CACHE", str(tmp_path / "cache"))
    flags = ["--model", tiny["t5"], "--train-file", pairs["train"], *SHORT, "--max-steps", "1"]
    argv = [sys.executable, "-m", "dsrun", "prepare", *flags]
    done = HEAVY.run(argv, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "53 train" in done.stderr
    entries = {p: p.stat().st_mtime_ns for p in (tmp_path / "cache" / "prepared").rglob("*.arrow")}
    assert entries
    dsrun(*flags, output=tmp_path / "run").ok()
    assert {p: p.stat().st_mtime_ns for p in (tmp_path / "cache" / "prepared").rglob("*.arrow")} == entries


def test_prepare_interrupted_by_sigint_prints_one_line(tiny, tmp_path):
    """Ctrl-C reaches the processes that tokenise too."""
    row = json.dumps({"source": phrase(1, 60), "target": phrase(2, 60)}) + "\n"
    (tmp_path / "long.jsonl").write_text(row * 100_000)
    flags = ["--model", tiny["t5"], "--train-file", str(tmp_path / "long.jsonl"), "--num-proc", "2"]
    preparing = HEAVY.popen(
        [sys.executable, "-m", "dsrun", "prepare", *flags],
        env={**os.environ, "DSRUN_CACHE": str(tmp_path / "cache")},
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    with preparing:
        while not any(path.stat().st_size for path in tmp_path.glob("cache/prepared/*/scratch/train/ledger.jsonl")):
            assert preparing.poll() is None
            time.sleep(0.05)
        os.killpg(preparing.pid, signal.SIGINT)
        _, said = preparing.communicate()
    assert preparing.returncode == 130
    assert "Traceback" not in said
    assert said.endswith("error: interrupted\n")


def test_bf16_zero3_training_saves_bf16_model(tiny, pairs, tmp_path):
    """bf16 trains with ZeRO-3 shards in bf16 and saves a bf16 model; many gradients are summed in fp32."""
    flags = [
        "--model",
        tiny["llama"],
        "--zero",
        "3",
        "--train-file",
        pairs["train"],
        "--bf16",
        "--max-steps",
        "4",
    ]
    many_runs(
        [
            [*flags, "--global-batch-size", "16", "--micro-batch-size", micro, "--output", str(tmp_path / micro)]
            for micro in ("1", "2")
        ],
        ranks=2,
        scratch=tmp_path,
    )
    weights = load_file(tmp_path / "1" / "model" / "model.safetensors")
    assert {tensor.dtype for tensor in weights.values()} == {torch.bfloat16}
    runs = [json.loads((tmp_path / micro / "run.json").read_text()) for micro in ("1", "2")]
    assert [run["deepspeed"].get("data_types") for run in runs] == [{"grad_accum_dtype": "fp32"}, None]


def test_user_deepspeed_config_json_is_used_unchanged(tiny, pairs, tmp_path):
    """The user's own DeepSpeed JSON is used as it is."""
    config = {
        "train_batch_size": "auto",
        "train_micro_batch_size_per_gpu": "auto",
        "gradient_accumulation_steps": "auto",
        "zero_optimization": {"stage": 1, "reduce_bucket_size": 12345},
        "bf16": {"enabled": False},
    }
    (tmp_path / "ds.json").write_text(json.dumps(config))
    done = dsrun(
        "--model", tiny["llama"], "--deepspeed", tmp_path / "ds.json", "--train-file", pairs["train"],
        "--max-steps", "2", output=tmp_path / "run",
    ).ok()  # fmt: skip
    assert "ZeRO-1" in done.err
    assert "fp32" in done.err
    run = json.loads((tmp_path / "run" / "run.json").read_text())
    assert run["deepspeed"]["zero_optimization"]["reduce_bucket_size"] == 12345


def test_numbers_of_users_deepspeed_config_hold(tiny, pairs, tmp_path):
    """Without flags: the batch and the rate of the JSON, and weights gathered where it does not ask for them."""
    config = {
        "train_batch_size": 8,
        "zero_optimization": {"stage": 3},
        "bf16": {"enabled": False},
        "optimizer": {"type": "AdamW", "params": {"lr": 3e-5, "torch_adam": True}},
    }
    (tmp_path / "ds.json").write_text(json.dumps(config))
    flags = ["--model", tiny["llama"], "--deepspeed", str(tmp_path / "ds.json"), "--train-file", pairs["train"]]
    many_runs([[*flags, "--max-steps", "2", "--output", str(tmp_path / "run")]], ranks=2, scratch=tmp_path)
    run = json.loads((tmp_path / "run" / "run.json").read_text())
    assert (run["batch"]["global_batch"], run["sources"]["learning_rate"]) == (8, str(tmp_path / "ds.json"))
    assert (tmp_path / "run" / "model" / "model.safetensors").exists()


def test_zero_auto_takes_stage_from_memory_plan(tiny, pairs, tmp_path):
    """With --zero auto, the memory plan chooses the ZeRO stage."""
    done = dsrun(
        "--model", tiny["llama"], "--zero", "auto", "--train-file", pairs["train"], "--max-steps", "2", *SHORT,
        output=tmp_path / "run",
    ).ok()  # fmt: skip
    assert "--zero auto: ZeRO-2" in done.err
    run = json.loads((tmp_path / "run" / "run.json").read_text())
    assert run["deepspeed"]["zero_optimization"]["stage"] == 2


def test_evaluation_only_metrics_equal_under_zero3(tiny, pairs, tmp_path):
    """--do-eval without training: ZeRO-3 needs an engine to gather parameters even then; nothing is saved."""
    flags = ["--model", tiny["t5"], "--validation-file", pairs["validation"], "--do-eval", *SHORT]
    runs = [[*flags, "--zero", stage, "--output", str(tmp_path / stage)] for stage in ("0", "3")]
    many_runs(runs, ranks=2, scratch=tmp_path)
    plain, sharded = (records(tmp_path / stage, "eval_loss") for stage in ("0", "3"))
    assert sharded == pytest.approx(plain, rel=1e-5)
    assert not (tmp_path / "3" / "model").exists()
    texts = [(tmp_path / stage / "predictions-validation.jsonl").read_text() for stage in ("0", "3")]
    assert texts[0] == texts[1]


def test_evaluation_only_output_names_predictions_file(tiny, pairs, tmp_path):
    """Nor is anything compiled for an optimizer that it does not have."""
    compiled = tmp_path / "compiled"
    done = dsrun(
        "--model", tiny["t5"], "--validation-file", pairs["validation"], "--do-eval", *FP32, "--offload", "cpu",
        output=tmp_path / "run", env={"TORCH_EXTENSIONS_DIR": str(compiled)},
    ).ok()  # fmt: skip
    assert not compiled.exists()
    assert re.search("^  parallel +1 CPU rank$", done.err, re.MULTILINE)
    predictions = tmp_path / "run" / "predictions-validation.jsonl"
    assert f"predictions  {predictions}" in done.err
    assert "goodput" not in done.err
    assert len(predictions.read_text().splitlines()) == 11
    rows = [line.split()[0] for line in done.err.splitlines() if line.startswith("  ") and line.split()]
    assert "precision" in rows
    assert not {"batch", "trained", "model"} & set(rows[1:]), "words about training in a run that does not train"


@pytest.mark.parametrize("length", [("--max-steps", "3"), ("--num-train-epochs", "1")])
def test_finished_run_called_again_trains_no_step(tiny, pairs, tmp_path, length):
    flags = ["--model", tiny["llama"], "--train-file", pairs["train"], *SHORT, *length]
    first = dsrun(*flags, output=tmp_path / "run").ok()
    weights, trained = load_file(tmp_path / "run" / "model" / "model.safetensors"), first.losses
    again = dsrun(*flags, output=tmp_path / "run").ok()
    assert again.losses == trained
    assert f"already finished: all {len(trained)} steps are done" in again.err
    assert f"{length[0].replace('-', '_').replace('__', '--')} above {length[1]}" in again.err
    assert "already finished" not in first.err
    after = load_file(tmp_path / "run" / "model" / "model.safetensors")
    assert all(torch.equal(after[name], weights[name]) for name in weights)
