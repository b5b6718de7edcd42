"""Settings, files, memory, precision, tokenizer and run folder of a job."""

import json
from pathlib import Path

import pytest

from dsrun.doctor.job.settings import look_at_config, look_at_files
from dsrun.doctor.launch.network import check_requirements
from dsrun.doctor.machine_facts import DoctorTarget
from dsrun.findings.finding import Finding
from dsrun.machine.driver import MemoryHolder
from tests.unit.doctor.recorded import A100, FINE, GIB, V100, codes, driver, found_by, job, levels, recorded

LLAMA = {
    "model_type": "llama", "hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 32,
    "num_attention_heads": 32, "num_key_value_heads": 8, "vocab_size": 128256, "max_position_embeddings": 8192,
}  # fmt: skip
T5 = {"model_type": "t5", "is_encoder_decoder": True, "vocab_size": 100, "d_model": 64}


def model(folder: Path, config: dict = LLAMA, **files: dict) -> str:
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "model.safetensors.index.json").write_text("{}")
    for name, content in files.items():
        (folder / f"{name}.json").write_text(json.dumps(content))
    return str(folder)


def test_settings_that_are_refused(tmp_path: Path) -> None:
    refused = Finding(
        level="error", code="settings", message="run.yaml:3: unknown key train.modle", fix="did you mean model?"
    )
    assert levels(found_by("settings", recorded(tmp_path), DoctorTarget(refused=refused))) == ["error"]


def test_settings_with_removed_arguments(tmp_path: Path) -> None:
    found = found_by("settings", recorded(tmp_path), job(tmp_path, "--model", "m", "--evaluation_strategy", "no"))
    assert codes(found) == ["settings_removed"]
    assert "--eval_strategy" in found[0].message


def test_settings_whose_batch_does_not_divide(tmp_path: Path) -> None:
    here = recorded(tmp_path, found=driver(A100, A100, A100))
    found = found_by("settings", here, job(tmp_path, "--model", "m", "--global-batch-size", "64"))
    assert codes(found) == ["settings_batch"]
    assert "--global-batch-size 63 or 66" in found[0].fix
    fine = found_by("settings", here, job(tmp_path, "--model", "m", "--global-batch-size", "48"))
    assert levels(fine) == FINE
    assert "48 = 8 × 3 GPUs × 2 steps" in fine[0].message


def test_settings_of_slurm_job_without_known_ranks(tmp_path: Path) -> None:
    """How many GPUs its nodes have is not known here, so nothing is said about the batch."""
    found = found_by("settings", recorded(tmp_path), job(tmp_path, "--model", "m", "--global-batch-size", "7", nodes=2))
    assert levels(found) == FINE
    assert "batch" not in found[0].message


@pytest.mark.parametrize(
    ("config", "flags", "expected"),
    [
        ({"zero_optimization": {"stage": 2}}, (), []),
        ({"zero_optimization": {"stage": 2, "stge": 1}}, (), ["error"]),
        ({"zero_optimization": {"stage": 2}, "bf16": {"enabled": True}}, ("--fp16",), ["error"]),
    ],
)
def test_deepspeed_json_against_flags(tmp_path: Path, config, flags, expected) -> None:
    (tmp_path / "ds.json").write_text(json.dumps(config))
    target = job(tmp_path, "--model", "m", "--deepspeed", "ds.json", *flags)
    found = found_by("deepspeed_json", recorded(tmp_path), target)
    assert sorted({level for level in levels(found) if level == "error"}) == expected
    assert all("(ds.json:" in each.where for each in found if each.level == "error")


def test_missing_deepspeed_json(tmp_path: Path) -> None:
    found = list(look_at_config(recorded(tmp_path), job(tmp_path, "--model", "m", "--deepspeed", "no.json")))
    assert codes(found) == ["deepspeed_json_unreadable"]


def test_files_that_are_missing(tmp_path: Path) -> None:
    here = recorded(tmp_path)
    target = job(tmp_path, "--model", model(tmp_path / "m"), "--train-file", str(tmp_path / "no.jsonl"))
    found = list(look_at_files(here, target))
    assert codes(found) == ["files"]
    assert levels(found_by("files", here, job(tmp_path, "--model", model(tmp_path / "m")))) == FINE


TRAINED = ("--zero", "3", "--max-length", "512", "--micro-batch-size", "1", "--gradient_checkpointing")


def test_gpu_memory_that_others_hold(tmp_path: Path) -> None:
    """Who holds it, and which GPUs are free."""
    holder = MemoryHolder(pid=4711, name="python", user="ana", used=60 * GIB)
    here = recorded(tmp_path, found=driver(A100, A100, free=19.5, holders=[holder]))
    (found,) = found_by("gpu_memory", here)
    assert found.level == "warning"
    assert found.message == "GPU 0: 19.5 of 80.0 GiB free, held by python 4711 of ana (60.0 GiB)"
    assert "CUDA_VISIBLE_DEVICES=1" in found.fix
    hidden = recorded(tmp_path, environ={"CUDA_VISIBLE_DEVICES": "1"}, found=driver(A100, A100, free=19.5))
    assert levels(found_by("gpu_memory", hidden)) == FINE


def test_gpu_memory_against_plan(tmp_path: Path) -> None:
    target = job(tmp_path, "--model", model(tmp_path / "m"), *TRAINED)
    eight = [A100] * 8
    found = found_by("gpu_memory", recorded(tmp_path, found=driver(*eight)), target)
    assert levels(found) == FINE
    assert "ZeRO-3, recomputing activations, micro batch 1" in found[0].message
    busy = found_by("gpu_memory", recorded(tmp_path, found=driver(*eight, free=5)), target)
    assert codes(busy) == ["gpu_memory_taken"]
    assert levels(busy) == ["error"]
    small = found_by("gpu_memory", recorded(tmp_path, found=driver(V100)), target)
    assert codes(small) == ["gpu_memory_plan"]
    assert "does not fit" in small[0].message


@pytest.mark.parametrize(
    ("gpus", "flags", "expected", "fix"),
    [
        (8, ("--zero", "3"), [("warning", "gpu_memory_fallback")], "--micro-batch-size 4 --global-batch-size 64"),
        (
            8,
            ("--zero", "3", "--no-remedy"),
            [("error", "gpu_memory_plan")],
            "--micro-batch-size 4 --global-batch-size 64",
        ),
        (1, ("--zero", "2"), [("error", "gpu_memory_plan")], "cpu offload"),
        (1, ("--zero", "2", "--lora", "16"), [("info", "gpu_memory")], ""),
        (8, ("--zero", "auto"), [("info", "gpu_memory")], ""),
        (
            8,
            ("--zero", "3", "--quantization", "4bit", "--lora", "8"),
            [("info", "gpu_memory"), ("info", "gpu_memory_unknown")],
            "",
        ),
    ],
)
def test_micro_batch_of_the_job_against_gpu_memory(tmp_path: Path, gpus, flags, expected, fix) -> None:
    """The job's own micro batch counts, 8 by default, and what dsrun does when memory runs out."""
    here = recorded(tmp_path, found=driver(*[A100] * gpus))
    found = found_by("gpu_memory", here, job(tmp_path, "--model", model(tmp_path / "m"), *flags))
    assert [(each.level, each.code) for each in found] == expected
    assert fix in found[0].fix


def test_gpu_memory_of_unknown_model_is_not_planned(tmp_path: Path) -> None:
    found = found_by("gpu_memory", recorded(tmp_path, found=driver(A100)), job(tmp_path, "--model", "org/not-here"))
    assert set(levels(found)) == {"info"}


@pytest.mark.parametrize(
    ("gpu", "kind", "flags", "expected"),
    [
        (A100, LLAMA, (), []),
        (A100, LLAMA, ("--bf16",), []),
        (V100, LLAMA, ("--bf16",), ["precision"]),
        (V100, LLAMA, (), ["precision_fp32"]),
        (V100, LLAMA, ("--fp16",), []),
        (V100, T5, ("--fp16",), ["precision"]),
        (V100, T5, ("--fp16", "--force"), ["precision_overflow"]),
        (V100, T5, (), ["precision_fp32"]),
        (None, LLAMA, (), []),
        (None, LLAMA, ("--fp16",), ["precision"]),
    ],
)
def test_precision_of_gpu_and_model(tmp_path: Path, gpu, kind, flags, expected) -> None:
    here = recorded(tmp_path, found=driver(gpu) if gpu else None)
    found = found_by("precision", here, job(tmp_path, "--model", model(tmp_path / "m", kind), *flags))
    assert codes(found) == expected
    assert expected or levels(found) == FINE


GOOD_TOKENS = {"tokenizer_config": {"eos_token": "</s>", "pad_token": {"content": "<pad>"}}}


@pytest.mark.parametrize(
    ("config", "files", "flags", "expected"),
    [
        (LLAMA, GOOD_TOKENS, (), []),
        (LLAMA, {"tokenizer_config": {"eos_token": "</s>"}}, (), []),
        (LLAMA, {"tokenizer_config": {"bos_token": "<s>"}}, (), ["tokenizer_end"]),
        (T5, {"tokenizer_config": {"eos_token": "</s>"}}, (), ["tokenizer_padding"]),
        (T5, {"tokenizer_config": {"eos_token": "</s>"}, "special_tokens_map": {"pad_token": "<pad>"}}, (), []),
        (LLAMA, GOOD_TOKENS | {"tokenizer": {"model": {"vocab": {"a": 0, "b": 128255}}}}, (), []),
        (LLAMA, GOOD_TOKENS | {"tokenizer": {"model": {"vocab": {"a": 0, "b": 128256}}}}, (), ["tokenizer_vocabulary"]),
        (
            LLAMA,
            GOOD_TOKENS | {"tokenizer": {"added_tokens": [{"id": 200000}]}},
            ("--lora", "8"),
            ["tokenizer_vocabulary"],
        ),
        (T5, GOOD_TOKENS | {"tokenizer": {"model": {"vocab": [["a", 0.0]] * 101}}}, (), ["tokenizer_vocabulary"]),
        (LLAMA, {"tokenizer_config": {"eos_token": "x"}, "tokenizer": {"model": 7, "added_tokens": "x"}}, (), []),
    ],
)
def test_tokenizer_against_model(tmp_path: Path, config, files, flags, expected) -> None:
    target = job(tmp_path, "--model", model(tmp_path / "m", config, **files), *flags)
    found = found_by("tokenizer", recorded(tmp_path), target)
    assert codes(found) == expected
    assert expected or levels(found) == FINE


def test_run_folder_that_is_taken(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    foreign = tmp_path / "photos"
    foreign.mkdir()
    (foreign / "holiday.jpg").touch()
    for folder in (tmp_path / "file", foreign):
        assert codes(found_by("run_folder", recorded(tmp_path), DoctorTarget(output=folder))) == ["run_folder"]
    assert levels(found_by("run_folder", recorded(tmp_path), DoctorTarget(output=tmp_path / "new"))) == FINE


@pytest.mark.parametrize(
    ("kind", "nodes", "expected"),
    [
        ("ext4", 0, []),
        ("ext4", 2, ["run_folder_local"]),
        ("lustre", 2, []),
        ("tmpfs", 1, ["run_folder_memory"]),
    ],
)
def test_run_folder_seen_by_all_nodes(tmp_path: Path, kind, nodes, expected) -> None:
    here = recorded(
        tmp_path, files={"/proc/self/mounts": f"x {str(tmp_path).replace(' ', chr(92) + '040')} {kind} rw 0 0\n"}
    )
    found = found_by("run_folder", here, DoctorTarget(output=tmp_path / "runs/a", nodes=nodes))
    assert codes(found) == expected
    assert expected or levels(found) == FINE


def test_required_gpus_and_memory(tmp_path: Path) -> None:
    here = recorded(tmp_path, found=driver(A100, V100))
    assert levels(check_requirements(here, 2, 32)) == FINE
    assert codes(check_requirements(here, 4, None)) == ["requirements_gpus"]
    assert codes(check_requirements(here, None, 40)) == ["requirements_memory"]
