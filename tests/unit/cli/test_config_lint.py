"""`dsrun config check` and `dsrun config upgrade` as commands."""

import json
import os
import re
import subprocess
import sys

import pytest

from dsrun.cli.options import declared_in
from dsrun.errors import UsageError

CHECK, UPGRADE = declared_in("config/check.toml"), declared_in("config/upgrade.toml")
GOOD = {"train_micro_batch_size_per_gpu": 4, "gradient_clipping": 1.0, "zero_optimization": {"stage": 2}}
HEAVY = ("torch", "deepspeed", "transformers", "accelerate", "pydantic", "numpy")


@pytest.fixture
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("NO_COLOR", "1")
    return tmp_path


@pytest.fixture
def call(capsys):
    """Exit code, stdout and stderr of a command."""

    def run(command, *args):
        code = command.main(list(map(str, args)), standalone_mode=False)
        out, err = capsys.readouterr()
        return code, out, err

    return run


def put(folder, name, content):
    (folder / name).write_text(content if isinstance(content, str) else json.dumps(content, indent=2))
    return name


def test_config_check_good_file_exits_0(here, call):
    assert call(CHECK, put(here, "ds.json", GOOD)) == (
        0,
        "ds.json: no findings\n",
        "",
    )


def test_config_check_warnings_exit_0(here, call):
    code, out, _ = call(CHECK, put(here, "ds.json", GOOD | {"mine": 1}))
    assert code == 0
    assert out.endswith("ds.json: 1 warning\n")


def test_config_check_error_exits_3_with_line_and_fix(here, call):
    """An error is exit code 3, and says where and what to do."""
    code, out, _ = call(CHECK, put(here, "ds.json", GOOD | {"fp16": {"enable": True}}))
    assert code == 3
    assert (
        "error fp16.enable (ds.json:8): DeepSpeed has no key enable in fp16 [unknown_key]\n    did you mean enabled?\n"
        in out
    )
    assert out.endswith("ds.json: 1 error\n")


def test_config_check_json_fields(here, call):
    code, out, _ = call(CHECK, put(here, "ds.json", GOOD | {"amp": {}}), "--format", "json")
    answer = json.loads(out)
    assert code == 3
    assert (answer["version"], answer["file"]) == (1, "ds.json")
    (finding,) = answer["findings"]
    assert set(finding) == {"level", "code", "message", "fix", "where"}
    assert (finding["level"], finding["code"], finding["where"]) == (
        "error",
        "removed_key",
        "amp (ds.json:7)",
    )


def test_config_check_reads_stdin(here):
    argv = [sys.executable, "-m", "dsrun", "config", "check", "-"]
    done = subprocess.run(argv, input='{"a": 1,}', capture_output=True, text=True, check=False)
    assert done.returncode == 3
    assert "<stdin>:1:8: a comma after the last member" in done.stdout


@pytest.mark.parametrize("form", ["text", "json"])
def test_config_check_file_name_not_utf8(here, call, form):
    name = put(here, os.fsdecode(b"\xff.json"), GOOD)
    code, out, _ = call(CHECK, name, "--format", form)
    assert code == 0
    assert r"\udcff.json" in out.encode().decode()


def test_config_check_closed_stdin(here, call, monkeypatch):
    monkeypatch.setattr(sys, "stdin", None)
    with pytest.raises(UsageError, match="<stdin> is closed"):
        call(CHECK, "-")


def test_config_check_world_size_and_target_options(here, call):
    config = put(here, "ds.json", GOOD | {"train_batch_size": 8, "gradient_accumulation_steps": 1})
    assert call(CHECK, config, "--world-size", 2)[0] == 0
    assert call(CHECK, config, "--world-size", 4)[0] == 3
    commented = put(here, "c.json", json.dumps(GOOD, indent=2) + "// end")
    assert call(CHECK, commented)[0] == 3
    assert call(CHECK, commented, "--for", "deepspeed")[0] == 0


AUTO = {
    "train_micro_batch_size_per_gpu": 4,
    "train_batch_size": "auto",
    "gradient_accumulation_steps": "auto",
    "gradient_clipping": "auto",
    "zero_optimization": {"stage": 2},
}


def test_config_check_against_training_flags(here, call):
    config = put(here, "ds.json", AUTO)
    code, out, _ = call(CHECK, config, "--", "--micro-batch-size", "2", "--model", "x")
    assert code == 3
    assert "train_micro_batch_size_per_gpu is 4, but --micro-batch-size asks for 2" in out
    assert call(CHECK, config, "--", "--per_gpu_train_batch_size", "4")[0] == 0


def test_config_check_against_run_file(here, call):
    config = put(here, "ds.json", AUTO)
    put(here, "run.yaml", "train:\n  model: m\n  per_device_train_batch_size: 2\n")
    code, out, _ = call(CHECK, config, "--against", "run.yaml")
    assert code == 3
    assert "run.yaml:3: train.per_device_train_batch_size asks for 2" in out
    # The command line wins, as in training.
    assert call(CHECK, config, "--against", "run.yaml", "--", "--micro_batch_size", "4")[0] == 0


def test_config_check_against_arguments_file(here, call):
    config = put(here, "ds.json", GOOD)
    put(here, "args.json", {"per_device_train_batch_size": 8})
    put(here, "run.yaml", "train:\n  per_device_train_batch_size: 8\n")
    for flags in (("args.json",), ("--config", "run.yaml")):
        code, out, _ = call(CHECK, config, "--", *flags)
        assert code == 3
        assert f"{flags[-1]}" in out
    assert call(CHECK, config, "--", "args.json", "--per_device_train_batch_size", "4")[0] == 0


def test_config_check_second_config_is_refused(here, call):
    put(here, "other.json", GOOD)
    with pytest.raises(UsageError, match=r"other\.json: train_micro_batch_size_per_gpu: unknown flag"):
        call(CHECK, put(here, "ds.json", GOOD), "other.json")


def test_config_check_ignores_deeply_nested_model_config(here, call):
    (here / "model").mkdir()
    (here / "model" / "config.json").write_text('{"a":' * 100_000)
    config = put(here, "ds.json", GOOD)
    assert call(CHECK, config, "--", "--model", "model", "--per_device_train_batch_size", "4")[0] == 0


def test_config_check_against_global_batch_size(here, call):
    config = put(here, "ds.json", AUTO | {"train_micro_batch_size_per_gpu": "auto", "train_batch_size": 32})
    assert call(CHECK, config, "--", "--global-batch-size", "64")[0] == 3
    assert call(CHECK, config, "--", "--global-batch-size", "32", "--nproc", "2")[0] == 0
    steps = put(here, "s.json", AUTO | {"gradient_accumulation_steps": 2})
    flags = ("--global-batch-size", "64", "--micro-batch-size", "4")
    assert call(CHECK, steps, "--world-size", 8, "--", *flags)[0] == 0
    assert call(CHECK, steps, "--world-size", 4, "--", *flags)[0] == 3


@pytest.mark.parametrize(
    ("model", "warned"), [("google/flan-t5-xl", True), ("google/mt5-small", True), ("llama-7b", False)]
)
def test_t5_fp16_warning_by_model_name(here, call, model, warned):
    _, out, _ = call(CHECK, put(here, "ds.json", AUTO), "--", "--fp16", "--model", model)
    assert ("t5_fp16" in out) is warned


def test_t5_fp16_warning_by_local_model_config(here, call):
    (here / "model").mkdir()
    put(here / "model", "config.json", {"model_type": "t5"})
    _, out, _ = call(CHECK, put(here, "ds.json", AUTO), "--", "--fp16", "--model", "model")
    assert "t5_fp16" in out


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (("nowhere.json",), "nowhere.json: cannot be read"),
        (("ds.json", "--gpu", "abacus"), "--gpu abacus: unknown or ambiguous GPU"),
        (("ds.json", "--", "--learning_rat", "1"), "unknown flag --learning_rat"),
        (("ds.json", "--for", "deepspeed", "--", "--bf16"), "does not go with training flags"),
        (("binary",), "binary: not text in UTF-8"),
    ],
)
def test_config_check_bad_input_is_usage_error(here, call, args, message):
    put(here, "ds.json", GOOD)
    (here / "binary").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(UsageError, match=message):
        call(CHECK, *args)


def test_config_check_imports_no_heavy_library(here):
    put(here, "ds.json", GOOD)
    code = (
        "import sys; from dsrun.cli.options import declared_in;"
        "declared_in('config/check.toml').main(['ds.json'], standalone_mode=False);"
        f"print([name for name in {HEAVY} if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "[]"


# -- upgrade ------------------------------------------------------------------------------------------------------

OLD = GOOD | {"nebula": {}}


def test_config_upgrade_text_to_stdout_changes_to_stderr(here, call):
    code, out, err = call(UPGRADE, put(here, "old.json", OLD))
    assert (code, json.loads(out)) == (0, GOOD)
    assert err == "note: nebula: left out (Nebula checkpointing was removed)\n"
    assert json.loads((here / "old.json").read_text()) == OLD


def test_config_upgrade_to_file_and_in_place(here, call):
    old = put(here, "old.json", OLD)
    assert call(UPGRADE, old, "-o", "new.json")[:2] == (0, "")
    assert json.loads((here / "new.json").read_text()) == GOOD
    assert call(UPGRADE, old, "--in-place")[:2] == (0, "")
    assert json.loads((here / "old.json").read_text()) == GOOD
    assert sorted(path.name for path in here.iterdir()) == ["new.json", "old.json"]


def test_config_upgrade_nothing_to_upgrade(here, call):
    text = put(here, "ds.json", GOOD)
    assert call(UPGRADE, text) == (
        0,
        (here / text).read_text(),
        "note: ds.json: nothing to upgrade\n",
    )


def test_config_upgrade_remaining_error_exits_3(here, call):
    code, out, err = call(UPGRADE, put(here, "old.json", OLD | {"fp16": {"enable": True}}))
    assert code == 3
    assert json.loads(out)["fp16"] == {"enable": True}
    assert re.search(r"^error: fp16\.enable \(old\.json:8\): .* enable .* fp16 \[unknown_key\]", err, re.MULTILINE)


def test_config_upgrade_in_place_needs_a_file(here, call):
    with pytest.raises(UsageError, match="--in-place"):
        call(UPGRADE, "-", "--in-place")


def test_config_upgrade_of_run_file(here, call):
    run = put(
        here,
        "run.yaml",
        "train:\n  model: m\n  warmup_ratio: 0.1  # ten percent\n  no_cuda: true\nzero:\n  stage: 2\n",
    )
    code, out, err = call(UPGRADE, run)
    assert code == 0
    assert out == "train:\n  model: m\n  warmup_steps: 0.1  # ten percent\n  use_cpu: true\nzero:\n  stage: 2\n"
    assert "run.yaml:3: train.warmup_ratio is no longer a flag: taken as --warmup_steps 0.1" in err
    assert "run.yaml:4: train.no_cuda is no longer a flag: taken as --use_cpu true" in err


ACCELERATE = """\
compute_environment: LOCAL_MACHINE
deepspeed_config:
  gradient_accumulation_steps: 4
  offload_optimizer_device: nvme
  offload_optimizer_nvme_path: /nvme
  zero_stag: 2
  zero_stage: 3
distributed_type: DEEPSPEED
mixed_precision: bf16
num_processes: 8
"""


def test_config_check_reads_accelerates_yaml(here, call):
    """Findings stand at the YAML's keys; accelerate loses the folder."""
    code, out, _ = call(CHECK, put(here, "a.yaml", ACCELERATE))
    assert code == 3
    assert "warning zero_stag (a.yaml:6): accelerate has no key zero_stag" in out
    assert "error offload_optimizer_device (a.yaml:4): offload_optimizer goes to NVMe, but has no folder there" in out
    assert "accelerate does not pass a path on" in out
    assert "write zero3_save_16bit_model: true" in out
    assert out.endswith("a.yaml: 1 error, 2 warnings\n")


def test_config_check_reads_the_file_that_accelerates_yaml_names(here, call):
    put(here, "ds.json", GOOD | {"zero_optimization": {"stage": 2, "overlap_com": True}})
    text = "deepspeed_config:\n  deepspeed_config_file: ds.json\n  zero_stage: 2\n"
    code, out, _ = call(CHECK, put(here, "a.yaml", text))
    assert code == 3
    assert "error zero_stage (a.yaml:3): accelerate refuses zero_stage beside deepspeed_config_file" in out
    assert "zero_optimization.overlap_com (ds.json:" in out


def test_config_upgrade_of_accelerates_yaml(here, call):
    """It becomes a DeepSpeed JSON without errors."""
    code, out, err = call(UPGRADE, put(here, "a.yaml", ACCELERATE))
    made = json.loads(out)
    assert code == 0
    assert made["zero_optimization"] == {
        "stage": 3,
        "offload_optimizer": {"device": "nvme", "nvme_path": "/nvme"},
        "stage3_gather_16bit_weights_on_model_save": True,
    }
    assert (made["gradient_accumulation_steps"], made["bf16"]) == (4, {"enabled": True})
    assert "zero_stage (a.yaml:7): is now zero_optimization.stage" in err
    assert "mixed_precision (a.yaml:9): start training with --bf16" in err


@pytest.mark.parametrize(
    ("text", "options", "message"),
    [
        (ACCELERATE, ("--in-place",), "becomes a DeepSpeed JSON"),
        ("deepspeed_config: {deepspeed_config_file: x.json}", (), "a.yaml names x.json .dsrun config upgrade x.json"),
        ("deepspeed_config: [", (), r"a\.yaml:\d+: not YAML"),
    ],
)
def test_config_upgrade_refuses_accelerates_yaml(here, call, text, options, message):
    with pytest.raises(UsageError, match=message):
        call(UPGRADE, put(here, "a.yaml", text), *options)
