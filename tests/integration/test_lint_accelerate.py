"""`dsrun config check` reads accelerate's YAML as accelerate does: its launcher and its plugin are asked."""

from __future__ import annotations

import pytest
import yaml

from dsrun.zero.lint.accelerate import read_accelerate
from tests.integration.accelerate_truth import configuration

LOCAL = {
    "compute_environment": "LOCAL_MACHINE",
    "distributed_type": "DEEPSPEED",
    "num_processes": 2,
    "num_machines": 1,
    "machine_rank": 0,
}
BLOCKS = [
    ({"zero_stage": 2, "gradient_accumulation_steps": 4, "gradient_clipping": 1.0}, "bf16"),
    ({"zero_stage": 3, "zero3_save_16bit_model": True, "offload_param_device": "cpu"}, "fp16"),
    ({"zero_stage": 3, "zero3_init_flag": True, "offload_optimizer_device": "cpu"}, "no"),
    ({"zero_stage": 3, "offload_optimizer_device": "nvme", "offload_optimizer_nvme_path": "/nvme"}, "bf16"),
    ({"zero_stag": 1}, "no"),
]


def without_nulls(config):
    """What DeepSpeed takes for the same: no nulls, no offload to nowhere, nothing that is off."""
    kept = {}
    for key, value in config.items():
        made = without_nulls(value) if isinstance(value, dict) else value
        if made not in (None, "none", {}, {"enabled": False}) and key not in ("steps_per_print",):
            kept[key] = made
    return kept


@pytest.mark.parametrize(("block", "precision"), BLOCKS)
def test_accelerate_file_becomes_accelerates_configuration(tmp_path, block, precision):
    text = yaml.safe_dump({**LOCAL, "deepspeed_config": block, "mixed_precision": precision})
    (tmp_path / "a.yaml").write_text(text)
    truth = without_nulls(configuration(tmp_path / "a.yaml"))
    for half in ("fp16", "bf16"):
        if half in truth:
            truth[half] = {"enabled": truth[half]["enabled"]}
    truth["zero_optimization"].setdefault("stage", 2)
    ours = without_nulls(read_accelerate(text, "a.yaml").config)
    if "stage3_gather_16bit_weights_on_model_save" not in ours["zero_optimization"]:
        truth["zero_optimization"].pop("stage3_gather_16bit_weights_on_model_save")
    assert ours == truth


@pytest.mark.parametrize(
    ("beside", "refused"),
    [({}, []), ({"zero3_init_flag": True}, []), ({"zero_stage": 2}, ["zero_stage"]), (None, ["mixed_precision"])],
)
def test_accelerate_refuses_keys_beside_a_file(tmp_path, beside, refused):
    """Also mixed_precision, whatever it says."""
    (tmp_path / "ds.json").write_text('{"train_micro_batch_size_per_gpu": 1, "zero_optimization": {"stage": 3}}')
    block = {"deepspeed_config_file": str(tmp_path / "ds.json"), **(beside or {})}
    top = {"mixed_precision": "no"} if beside is None else {}
    text = yaml.safe_dump({**LOCAL, "deepspeed_config": block, **top})
    (tmp_path / "a.yaml").write_text(text)
    found = read_accelerate(text, "a.yaml")
    assert isinstance(configuration(tmp_path / "a.yaml"), str) == bool(refused)
    assert [each.where.partition(" ")[0] for each in found.findings] == refused
