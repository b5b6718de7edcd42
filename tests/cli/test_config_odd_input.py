"""`dsrun config` and `dsrun plan` with unusual input: one line, the right exit code, no traceback."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

LLAMA = {
    "model_type": "llama", "hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 32,
    "num_attention_heads": 32, "num_key_value_heads": 8, "vocab_size": 128256,
}  # fmt: skip
GOOD = {"train_micro_batch_size_per_gpu": 1, "zero_optimization": {"stage": 2}, "gradient_clipping": 1.0}


@pytest.fixture
def model(here):
    folder = here / "llama"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(LLAMA))
    return "./llama"


def refused(done, *parts):
    assert done.returncode == 2, done.stderr
    assert len(done.stderr.splitlines()) == 1
    for part in parts:
        assert part in done.stderr


@pytest.mark.parametrize("gpu", ["a100-80", "h100-80", "rtx 4090", "V100"])
def test_gpu_names_are_the_same_for_every_command(dsrun, here, model, gpu):
    (here / "ds.json").write_text(json.dumps(GOOD))

    assert dsrun("config", "check", "ds.json", "--gpu", gpu).returncode == 0
    assert dsrun("config", "--gpu", gpu).returncode == 0
    assert "GiB)" in dsrun("plan", "--count", "shapes", "--model", model, "--gpus", f"{gpu}:8").stdout


def test_bf16_check_with_short_gpu_name(dsrun, here):
    (here / "ds.json").write_text(json.dumps(GOOD | {"bf16": {"enabled": True, "check_grad_overflow": True}}))

    assert "bf16_needs_ampere" in dsrun("config", "check", "ds.json", "--gpu", "v100-32").stdout


@pytest.mark.parametrize(
    "line",
    [("config", "-o", ".", "--force"), ("config", "-o", "."), ("config", "upgrade", "ds.json", "-o", ".")],
)
def test_config_output_to_folder_is_refused(dsrun, here, line):
    (here / "ds.json").write_text(json.dumps(GOOD))

    refused(dsrun(*line), "is a folder", "name a file")


@pytest.mark.parametrize("line", [("config",), ("plan", "--count", "shapes", "--model", "./llama", "--gpus", "t4:8")])
def test_full_disk_at_stdout_is_one_line(here, environ, model, line):
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "dsrun", *line], cwd=here, env=environ, stdout=full, stderr=subprocess.PIPE,
            text=True, check=False,
        )  # fmt: skip

    refused(done, "No space left on device")


def test_endless_config_file_is_refused(dsrun):
    refused(dsrun("config", "check", "/dev/zero"), "/dev/zero", "larger than 8 MiB")


def test_config_file_not_utf8(dsrun, here):
    (here / "latin.json").write_bytes('{"größe": 1}'.encode("latin-1"))

    refused(dsrun("config", "check", "latin.json"), "not text in UTF-8")


@pytest.mark.parametrize("command", [("plan", "--gpus", "t4"), ("config", "--zero", "3")])
def test_invalid_model_config_is_refused(dsrun, here, command):
    deep, weights = here / "deep.json", here / "model.safetensors"
    deep.write_text('{"a":' * 100_000)
    with weights.open("wb") as opened:
        os.truncate(opened.fileno(), 33 * 2**20)

    refused(dsrun(*command, "--model", "deep.json"), "deep.json", "nested too deeply")
    refused(dsrun(*command, "--model", "model.safetensors"), "model.safetensors", "is not a model config")


def test_model_config_with_too_many_layers(dsrun, here):
    (here / "config.json").write_text(json.dumps(LLAMA | {"num_hidden_layers": 100_000_000}))

    refused(dsrun("plan", "--count", "shapes", "--gpus", "t4", "--model", "."), "num_hidden_layers", "10,000")


@pytest.mark.parametrize("path", ["./nowhere", "/nowhere/model", "~/nowhere", "a/b/c"])
def test_missing_model_folder_is_no_hub_name(dsrun, path):
    """A folder that is not there is not taken for the name of a model to download."""
    done = dsrun("plan", "--gpus", "t4", "--model", path)

    assert done.returncode == 4
    assert "no such folder" in done.stderr
    assert "hf download" not in done.stderr


@pytest.mark.parametrize("number", ["nan", "inf", "0", "-1"])
def test_host_memory_must_be_positive_number(dsrun, model, number):
    done = dsrun("plan", "--count", "shapes", "--gpus", "t4", "--model", model, "--host-memory", number)

    refused(done, "--host-memory")


def test_plan_reason_names_host_memory(dsrun, model):
    line = ("plan", "--count", "shapes", "--gpus", "a100-80", "--model", model, "--host-memory", "20")
    done = json.loads(dsrun(*line, "--format", "json").stdout)

    offloaded = [row for row in done["strategies"] if row["offload"] == "cpu" and row["stage"] == 3]
    assert {row["verdict"] for row in offloaded} == {"does not fit"}
    for row in offloaded:
        assert row["gpu_total"] <= done["asked"]["budget"]
        assert row["host_per_node"] > 20 * 2**30
        assert "host memory" in row["reason"]
        assert row["reason"] in dsrun(*line, "--all").stdout


def test_plan_json_gives_reason_for_what_does_not_fit(dsrun, model):
    done = dsrun("plan", "--count", "shapes", "--gpus", "t4:1", "--model", model, "--format", "json")

    rows = [row for row in json.loads(done.stdout)["strategies"] if row["verdict"] == "does not fit"]
    assert rows
    assert all("alone take" in row["reason"] or "host memory" in row["reason"] for row in rows)


def test_plan_command_for_nodes_starts_task_per_gpu(dsrun, model):
    """The commands for several nodes start a process for each GPU."""
    done = dsrun("plan", "--count", "shapes", "--gpus", "a100-80:8", "--nodes", "2", "--model", model)

    line = next(each for each in done.stdout.splitlines() if "dsrun train" in each)
    assert line.startswith("srun --nodes=2 --ntasks-per-node=8 --gpus-per-node=8 dsrun train ")


def test_plan_train_command_repeats_options(dsrun, here, model):
    (here / "llama" / "model.safetensors").write_bytes(b"")
    line = ("plan", "--count", "shapes", "--gpus", "a100-80:8", "--model", model)
    plain = dsrun(*line).stdout
    explicit = dsrun(*line, "--from-scratch", "--attention", "eager").stdout

    assert "--from-scratch" not in plain
    assert "--attn-implementation" not in plain
    assert " --from-scratch --attn-implementation eager " in explicit.split("dsrun train")[1]


def test_nvme_buffer_size_holds_largest_parameter_shard(dsrun, here, model):
    # 128256 × 4096 elements are more than DeepSpeed's default of 1e8, on one GPU and on four, not on eight.
    nvme = ("--zero", "3", "--offload-optimizer", "nvme", "--offload-param", "nvme", "--nvme-path", "/nvme")

    def size(*more):
        block = json.loads(dsrun("config", *nvme, *more).stdout)["zero_optimization"]["offload_param"]
        return block.get("buffer_size", 100_000_000)

    for gpus in (1, 2, 4, 8):
        assert size("--model", model, "--gpus", str(gpus)) >= 128256 * 4096 / gpus
    assert size("--model", model) >= 128256 * 4096
    assert size("--model", model, "--gpus", "8") == size() == 100_000_000
    assert size("--model", model, "--set", "zero_optimization.offload_param.buffer_size=7") == 7


def test_plan_sets_nvme_buffer_size(dsrun, model):
    line = (
        "--count",
        "shapes",
        "--gpus",
        "t4:1",
        "--host-memory",
        "40",
        "--max-length",
        "128",
        "--model",
        model,
    )
    found = json.loads(dsrun("plan", *line, "--format", "json").stdout)

    assert "--zero 3 --offload nvme" in found["commands"][0]
    assert "--set zero_optimization.offload_param.buffer_size=526000000" in found["commands"][0]
    place = found["strategies"][found["choice"]]["host_states_per_rank"]
    assert place["staging"] >= 5 * 2 * 128256 * 4096


def test_upgrade_remaining_errors_have_lines_of_new_file(dsrun, here):
    (here / "old.json").write_text(
        '{"train_batch_size": 8, "bf16": {"enabled": true, "hysteresis": 2}, "zero_optimization": {"stage": 9}}'
    )
    done = dsrun("config", "upgrade", "old.json", "-o", "new.json")

    assert done.returncode == 3
    place = next(each for each in done.stderr.splitlines() if "zero_optimization.stage" in each)
    number = int(place.partition("(new.json:")[2].partition(")")[0])
    assert '"stage": 9' in (here / "new.json").read_text().splitlines()[number - 1]


def test_upgrade_needs_force_to_overwrite(dsrun, here):
    (here / "old.json").write_text(json.dumps(GOOD))
    (here / "new.json").write_text("mine")
    refused(dsrun("config", "upgrade", "old.json", "-o", "new.json"), "new.json exists", "--force")
    assert (here / "new.json").read_text() == "mine"
    assert dsrun("config", "upgrade", "old.json", "-o", "new.json", "--force").returncode == 0
    assert json.loads((here / "new.json").read_text()) == GOOD


def test_bucket_size_beyond_int64_is_refused(dsrun, here):
    refused(dsrun("config", "--reduce-bucket-size", "1e99"), "1e99", "2^63")
    refused(dsrun("config", "--reduce-bucket-size", "9223372036854775808"), "2^63")
    refused(dsrun("config", "--reduce-bucket-size", "1.5"), "not a whole number")
    assert '"reduce_bucket_size": 500000000' in dsrun("config", "--zero", "2", "--reduce-bucket-size", "5e8").stdout


def test_upgrade_deeply_nested_run_file(dsrun, here):
    (here / "deep.yaml").write_text("train: " + "[" * 20000)
    refused(dsrun("config", "upgrade", "deep.yaml"), "deep.yaml")


@pytest.mark.parametrize("command", [("plan", "--count", "shapes", "--gpus", "t4"), ("config", "--zero", "3")])
@pytest.mark.parametrize(
    ("name", "text", "parts"),
    [
        ("digits", '{"model_type": "llama", "hidden_size": 1' + "0" * 5000 + "}", "4300 digits"),
        ("huge", json.dumps(LLAMA | {"hidden_size": 10**300}), "100,000,000"),
        ("negative", json.dumps(LLAMA | {"hidden_size": -5}), "hidden_size -5"),
        ("switch", json.dumps(LLAMA | {"hidden_size": True}), "hidden_size True"),
    ],
)
def test_invalid_hidden_size_in_model_config(dsrun, here, command, name, text, parts):
    (here / f"{name}.json").write_text(text)
    refused(dsrun(*command, "--model", f"{name}.json"), parts)


@pytest.mark.parametrize("layers", [3, "ab", [0.5], {}])
def test_invalid_mlp_only_layers_in_model_config(dsrun, here, layers):
    config = LLAMA | {"model_type": "qwen3_moe", "num_experts": 4, "mlp_only_layers": layers}
    (here / "config.json").write_text(json.dumps(config))
    refused(dsrun("plan", "--count", "shapes", "--gpus", "t4", "--model", "."), "mlp_only_layers")


def test_impossible_model_names(dsrun):
    refused(dsrun("plan", "--gpus", "t4", "--model", "x" * 300), "File name too long")
    done = dsrun("plan", "--gpus", "t4", "--model", "~nobody-by-that-name/model")
    assert (done.returncode, len(done.stderr.splitlines())) == (4, 1)


def test_plan_notes_quantised_weights(dsrun, here):
    config = LLAMA | {"quantization_config": {"quant_method": "gptq", "bits": 4}}
    (here / "config.json").write_text(json.dumps(config))
    done = dsrun("plan", "--count", "shapes", "--gpus", "a100-80:8", "--model", ".")
    assert done.returncode == 0
    assert "quantised (gptq)" in done.stderr


def test_plan_nothing_fits_at_all(dsrun, here, model):
    """Where nothing would fit, no list of what would is promised."""
    large = {"hidden_size": 16384, "intermediate_size": 53248, "num_hidden_layers": 126}
    (here / "llama" / "config.json").write_text(json.dumps(LLAMA | large))
    line = ("--gpus", "t4:8", "--max-length", "100000000")
    done = dsrun("plan", "--count", "shapes", "--model", model, *line)
    assert done.returncode == 3
    assert "What would:" not in done.stdout
    assert done.stdout.splitlines()[-1].startswith("nothing fits, and neither more or larger GPUs")


@pytest.mark.parametrize("flag", ["--autotp", "--sequence-parallel"])
def test_parallel_size_of_zero_is_refused(dsrun, flag):
    refused(dsrun("config", flag, "0", "--gpus", "4"), f"{flag}: 0 is less than 1")


def test_infinite_gradient_clipping_is_refused(dsrun):
    refused(dsrun("config", "--gradient-clipping", "inf"), "--gradient-clipping", "JSON")
