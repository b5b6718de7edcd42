"""`dsrun config`: the configuration on stdout or in the file of -o; an error is one line."""

from __future__ import annotations

import json
import re

import pytest

from dsrun.datafiles import data_folder
from dsrun.zero.generate.config import SHIPPED


def printed(dsrun, *args: str) -> dict:
    done = dsrun("config", *args)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_config_prints_shipped_zero2_offload(dsrun):
    done = dsrun("config", "--zero", "2", "--offload-optimizer", "cpu", "--preset", "balanced")
    assert done.stdout == (data_folder("ds_configs") / "zero2_offload.json").read_text()
    assert done.stderr.startswith("note: DeepSpeed compiles its CPU Adam")


def test_config_output_is_deterministic(dsrun):
    args = ("config", "--zero", "3", "--for", "deepspeed", "--model", "demo-llama", "--gpu", "rtx 4090")
    assert dsrun(*args).stdout == dsrun(*args).stdout


def test_config_flags_with_underscores(dsrun):
    assert printed(dsrun, "--offload_optimizer", "cpu") == printed(dsrun, "--offload-optimizer", "cpu")


@pytest.mark.parametrize(
    ("typed", "own"),
    [
        ("--stage 3 --offload cpu", "--zero 3 --offload-optimizer cpu --offload-param cpu"),
        ("--stage 2 --offload cpu", "--zero 2 --offload-optimizer cpu"),
        ("--bf16", "--precision bf16"),
        ("--fp16 --offload none", "--precision fp16"),
        (
            "--optimizer adamw --learning_rate 1e-4 --max_grad_norm 0.5 --per_device_train_batch_size 4",
            "--optimizer adamw --lr 1e-4 --gradient-clipping 0.5 --micro-batch-size 4",
        ),
    ],
)
def test_config_takes_the_flags_of_train(dsrun, typed, own):
    assert printed(dsrun, *typed.split()) == printed(dsrun, *own.split())


@pytest.mark.parametrize("typed", ["5e8", "500_000_000", "500000000"])
def test_bucket_size_notations(dsrun, typed):
    config = printed(dsrun, "--reduce-bucket-size", typed)
    assert config["zero_optimization"]["reduce_bucket_size"] == 500_000_000


def test_config_output_needs_force_to_overwrite(dsrun, here):
    """Output is written atomically, and does not replace an existing file."""
    done = dsrun("config", "--zero", "3", "-o", "ds.json")
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    first = (here / "ds.json").read_text()
    assert first == (data_folder("ds_configs") / "zero3.json").read_text()
    again = dsrun("config", "--zero", "2", "-o", "ds.json")
    assert (again.returncode, again.stderr) == (2, "error: ds.json exists (add --force to replace it)\n")
    assert (here / "ds.json").read_text() == first
    assert dsrun("config", "--zero", "2", "-o", "ds.json", "--force").returncode == 0
    assert json.loads((here / "ds.json").read_text())["zero_optimization"]["stage"] == 2
    assert [each.name for each in here.iterdir()] == ["ds.json"]


def test_config_output_in_missing_folder(dsrun, here):
    done = dsrun("config", "-o", "no/ds.json")
    assert (done.returncode, done.stdout) == (2, "")
    assert re.fullmatch(r"error: no/ds\.json: cannot be written: No such file or directory \(.*\)\n", done.stderr)
    assert list(here.iterdir()) == []


def test_config_list_names_every_shipped_file(dsrun):
    lines = dsrun("config", "--list").stdout.splitlines()
    assert [line.split()[0] for line in lines] == list(SHIPPED)
    assert all(len(line.split()) > 3 for line in lines)
    listed = printed(dsrun, "--list", "--format", "json")
    assert listed["version"] == 1
    assert [each["file"] for each in listed["files"]] == list(SHIPPED)


def test_config_explain_gives_meaning_and_reason(dsrun):
    text = dsrun("config", "--explain", "--zero", "3").stdout
    block = text[text.index("zero_optimization.stage = 3") :].splitlines()[:3]
    assert block[2] == "    because: asked by --zero 3"
    found = printed(dsrun, "--explain", "--zero", "3", "--format", "json")
    assert found["version"] == 1
    assert set(found["keys"][0]) == {"key", "value", "does", "why"}
    assert len(found["keys"]) == text.count("    because: ")


def test_bucket_size_from_model_config(dsrun, here):
    (here / "m").mkdir()
    (here / "m" / "config.json").write_text('{"model_type": "gemma3", "text_config": {"hidden_size": 3000}}')
    block = printed(dsrun, "--zero", "3", "--model", "./m")["zero_optimization"]
    assert block["reduce_bucket_size"] == 3000**2
    assert block["stage3_param_persistence_threshold"] == 30_000


def test_bucket_size_stays_auto_for_absent_model(dsrun, environ, tmp_path):
    """A model that is not on this machine leaves "auto", with a note about it."""
    environ["HF_HOME"] = str(tmp_path)
    done = dsrun("config", "--zero", "3", "--model", "meta-llama/Llama-3.1-8B")
    assert done.returncode == 0
    assert json.loads(done.stdout)["zero_optimization"]["reduce_bucket_size"] == "auto"
    assert re.fullmatch(r"note: meta-llama/Llama-3\.1-8B is not on this machine: [^\n]*\n", done.stderr)


def test_gradient_accumulation_from_gpus_and_batch(dsrun):
    config = printed(dsrun, "--for", "deepspeed", "--gpus", "8", "--global-batch-size", "64", "--micro-batch-size", "4")
    names = ("train_batch_size", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps")
    assert [config[name] for name in names] == [64, 4, 2]


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["--zero", "4"], "ZeRO stage 4 does not exist (choose --zero 0, 1, 2 or 3)"),
        (["--zero", "2", "--hpz", "4"], "--hpz does nothing under --zero 2 (use --zero 3)"),
        (["--zero", "two"], "'two' is not a whole number"),
        (["--precision", "fp8"], "'fp8' is not one of"),
        (["--offlod-optimizer", "cpu"], "--offload-optimizer"),
        (["--max-live-parameters", "7"], "(--set zero_optimization.stage3_max_live_parameters=VALUE)"),
        (["--set", "zero_optimization.stge=3"], "did you mean zero_optimization.stage?"),
        (["--gpu", "voodoo2"], "--gpu voodoo2: unknown or ambiguous GPU"),
        (["--gpu", "v100", "--precision", "bf16"], "has no bf16 arithmetic"),
        (
            ["--for", "deepspeed", "--gpus", "8", "--global-batch-size", "12"],
            "global batch 12 does not divide by 8 ranks",
        ),
        (["--bf16", "--precision", "fp16"], "--bf16 and --precision fp16 differ (remove one of them)"),
        (["--offload", "cpu", "--offload-optimizer", "nvme"], "--offload cpu and --offload-optimizer nvme differ"),
        (["--offload", "cpu", "--offload-optimizer", "none"], "--offload cpu and --offload-optimizer none differ"),
        (["--stage", "3", "--zero", "2"], "--stage 3 and --zero 2"),
        (["--micro-batch-size=2", "--per-device-train-batch-size", "4"], "--per-device-train-batch-size 4"),
        (["--mics_shard_size", "8"], "unknown flag --mics_shard_size (use --hpz)"),
        (
            ["--stagee", "3", "--max_live_parameters=7", "--qqqq"],
            "unknown flags --stagee (did you mean --stage?), --max_live_parameters"
            " (--set zero_optimization.stage3_max_live_parameters=VALUE), --qqqq\n",
        ),
        (["chekc"], "did you mean `dsrun config check`?"),
        (["--zero", "3", "check", "ds.json"], "--zero does not go with `dsrun config check`"),
    ],
)
def test_config_usage_errors_are_one_line(dsrun, here, args, message):
    done = dsrun("config", *args)
    assert (done.returncode, done.stdout) == (2, "")
    assert re.fullmatch(r"error: [^\n]+\n", done.stderr), done.stderr
    assert message in done.stderr
    assert list(here.iterdir()) == []


def test_config_help_lists_every_option(dsrun):
    from dsrun.zero.generate.spec import flag_of, options

    flags = set(re.findall(r"--[a-z0-9-]+", dsrun("config", "--help").stdout))
    assert {flag_of(name) for name in options()} <= flags
    assert {"--output", "--force", "--list", "--explain", "--format"} <= flags
