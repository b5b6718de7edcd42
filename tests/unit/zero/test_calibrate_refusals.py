"""When `dsrun plan --calibrate` takes no step: the plan is not for this machine, or there is nothing to run."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from dsrun.errors import UsageError
from dsrun.machine.gpus import LocalGpu
from dsrun.models.folder import find
from dsrun.recipe.resolve import resolve
from dsrun.zero.memory.calibrate import calibrate, compare, is_another, training_argv
from dsrun.zero.memory.model.count import describe
from dsrun.zero.memory.plan import plan
from dsrun.zero.memory.plan_request import PlanRequest, cluster

LLAMA = {
    "model_type": "llama", "hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 32,
    "num_attention_heads": 32, "num_key_value_heads": 8, "vocab_size": 128256,
}  # fmt: skip


@pytest.fixture
def found(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(LLAMA))
    return find(str(tmp_path))


def made(gpus: str, nodes: int = 1, **changes):
    request = PlanRequest(model=describe(LLAMA, from_scratch=True), cluster=cluster(gpus, nodes=nodes))
    return plan(replace(request, **changes))


@pytest.fixture
def no_steps(monkeypatch):
    """Training a step would be the failure."""
    monkeypatch.setattr("dsrun.zero.memory.calibrate.capture", lambda *args, **options: pytest.fail("a step was taken"))


@pytest.mark.usefixtures("no_steps")
def test_calibrate_plan_where_nothing_fits_refused(found):
    nothing = made("rtx-4090", host_memory=8.0)
    assert nothing.choice is None
    with pytest.raises(UsageError, match="nothing fits, so there is nothing to calibrate"):
        calibrate(nothing, found, notify=pytest.fail)


@pytest.mark.usefixtures("no_steps")
@pytest.mark.parametrize(
    ("here", "planned", "words"),
    [
        (0, made("a100-80:8", 2), "which has 0 GPUs, and the plan is for 16"),
        (1, made("a100-80:8", 2), "which has 1 GPU, and the plan is for 16"),
        (1, made("a100-80:8"), "which has 1 GPU, and the plan is for 8"),
    ],
)
def test_calibrate_plan_for_other_gpu_count_refused(here, planned, words, found, monkeypatch):
    monkeypatch.setattr("dsrun.zero.memory.calibrate.visible_gpus", lambda: [object()] * here)
    with pytest.raises(UsageError, match=words) as caught:
        calibrate(planned, found, notify=pytest.fail)
    assert caught.value.fix == "plan for the GPUs here"


def gpu(name, memory, capability):
    return LocalGpu(
        index=0, name=name, uuid="GPU-1", memory_total=int(memory * 2**30), capability=capability
    )  # fmt: skip


@pytest.mark.usefixtures("no_steps")
@pytest.mark.parametrize(
    ("planned", "name", "memory", "capability"),
    [
        ("a100-80:1", "NVIDIA H100 80GB HBM3", 79.6, (9, 0)),
        ("a100-80:1", "NVIDIA A100-SXM4-40GB", 39.4, (8, 0)),
        ("a100-80:1", "NVIDIA L4", 22.5, None),
    ],
)
def test_calibrate_plan_for_other_gpu_model_refused(planned, name, memory, capability, found, monkeypatch):
    here = gpu(name, memory, capability)
    monkeypatch.setattr("dsrun.zero.memory.calibrate.visible_gpus", lambda: [here])
    with pytest.raises(UsageError, match=f"which has {name}, and the plan is for a100-80"):
        calibrate(made(planned), found, notify=pytest.fail)


@pytest.mark.parametrize(
    ("planned", "name", "memory", "capability"),
    [
        ("a100-80:1", "NVIDIA A100-SXM4-80GB", 79.2, (8, 0)),
        ("v100-32:1", "Tesla V100-SXM2-32GB", 31.7, (7, 0)),
        ("h200:1", "NVIDIA H200", 139.7, None),
        ("l4:1", "NVIDIA L4", 21.9, (8, 9)),
    ],
)
def test_calibrate_gpu_memory_may_differ_a_little(planned, name, memory, capability):
    """GPUs of the same kind may differ a little in memory."""
    assert not is_another(gpu(name, memory, capability), cluster(planned))


def test_calibrate_nvme_offload_names_folder(found, tmp_path):
    """Steps with NVMe offload name the folder."""
    nvme = made("rtx-4090", host_memory=64.0)
    row = next(each for each in nvme.rows if each.strategy.offload == "nvme")
    argv = training_argv(nvme, row, found, tmp_path, nvme_path="/nvme", on_gpu=True)
    spec = resolve(argv, tmp_path).spec
    assert (spec.offload, spec.nvme_path) == ("nvme", "/nvme")


def test_calibrate_shows_measurement_with_unwritable_cache(found, tmp_path, monkeypatch):
    """A measurement is shown even if it cannot be kept."""
    (tmp_path / "file").touch()
    monkeypatch.setenv("DSRUN_CACHE", str(tmp_path / "file" / "cache"))
    planned = made("a100-80:8")
    measured = planned.choice.gpu.total
    context = planned.choice.gpu.buffers.context
    records = [{"gpu_memory_peak": measured - context}]
    notes = []
    calibration = compare(planned, planned.choice, found, records, on_gpu=True, notify=notes.append)
    assert (calibration.measured, calibration.saved) == (measured, None)
    assert "cannot be kept" in notes[0]
