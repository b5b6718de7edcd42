"""`dsrun certify` at work: sound families pass, and each fault that once stood in the field is named by its check."""

from __future__ import annotations

import json
import sys

import pytest

from dsrun.certify.request import CertifyRequest
from tests.forkserver.client import HEAVY, ROOT
from tests.unit.train.certify.subjects import config_of

pytestmark = pytest.mark.train

SOUND = ["llama", "qwen3", "gpt2", "t5", "bart", "mixtral", "gemma3"]
# Certified by all checks; the others by --quick.
WHOLE = ("llama", "t5")
FAULTS = {
    "gathered_parameters_stay_open": ("qwen3_5", "stages"),
    "missing_weight_is_drawn_in_silence": ("llama", "loaded"),
    "vision_tower_is_lost": ("gemma3", "final"),
    "rules_read_sharded_shapes": ("pegasus", "stages"),
    "own_output_embedding_is_tied_where_sharded": ("flan-t5-base", "stages"),
    "loss_is_divided_by_accumulation_again": ("t5", "one_loss"),
    "zero_2_halves_gradients": ("llama", "stages"),
    "packed_documents_see_each_other": ("llama", "one_loss"),
    "checkpoint_of_experts_is_not_loaded": ("mixtral", "resumed"),
    "adapter_is_merged_at_half_its_scale": ("llama", "adapter"),
    "frozen_weights_are_trained": ("pegasus", "resumed"),
    "resumed_run_begins_the_data_anew": ("bart", "resumed"),
    "sharded_model_generates_from_shards": ("llama", "generated"),
    "router_gets_no_gradient": ("mixtral", "final"),
    "adapters_leave_layers_out": ("llama", "adapter"),
    "random_states_are_not_resumed": ("llama", "resumed", (0,)),
}


def certified(kind, folder, *, fault="none", **asked):
    """Status and findings by the code of the check."""
    published = json.loads((ROOT / "tests/data/published_configs.json").read_text()).get(kind)
    if published:
        (folder / "model").mkdir()
        (folder / "model" / "config.json").write_text(json.dumps(published))
    else:
        config_of(kind).save_pretrained(folder / "model")
    (folder / "scratch").mkdir()
    request = CertifyRequest(model=str(folder / "model"), **asked).as_json()
    argv = [sys.executable, "-m", "tests.integration.mutants", fault, request, str(folder / "scratch")]
    done = HEAVY.run(argv, capture_output=True, cwd=ROOT)
    assert done.returncode == 0, done.stderr.decode()[-3000:]
    return {row["check"]: row for row in json.loads(done.stdout)["checks"]}


@pytest.mark.parametrize(
    "kind", [pytest.param(each, marks=() if each in WHOLE else pytest.mark.exhaustive) for each in SOUND]
)
def test_no_false_alarm(kind, tmp_path):
    rows = certified(kind, tmp_path, quick=kind not in WHOLE)
    assert [(row["check"], row["findings"]) for row in rows.values() if row["status"] in ("fail", "warn")] == []
    assert sum(row["status"] == "pass" for row in rows.values()) > len(rows) // 2


@pytest.mark.parametrize("fault", FAULTS)
def test_fault_is_found_by_its_check(fault, tmp_path):
    kind, code, *stages = FAULTS[fault]
    row = certified(kind, tmp_path, fault=fault, only=(code,), **({"stages": stages[0]} if stages else {}))[code]
    told = [each["code"] for each in row["findings"] if each["level"] != "info"]
    assert told, row
    assert not any(each.endswith(("_crashed", "_hangs")) for each in told), row
