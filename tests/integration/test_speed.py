"""--speed, --torch_compile and --bf16-master-weights on real engines."""

from __future__ import annotations

import json

import pytest

from tests.integration.conftest import SHORT, many_runs, records

pytestmark = pytest.mark.train

SHAPE = ["--max-steps", "4", "--warmup-steps", "1", "--micro-batch-size", "4", "--logging-steps", "1"]
# The backend shows what dynamo captures; inductor would compile C++ for a minute.
COMPILED = ["--torch_compile", "true", "--torch_compile_backend", "eager"]
RUNS = {
    "plain": ["--zero", "2"],
    "compiled": ["--zero", "2", *COMPILED],
    "compiled-ddp": ["--zero", "0", *COMPILED],
    "master": ["--zero", "2", "--bf16", "true", "--bf16-master-weights", "--speed", "safe"],
    "master-3": ["--zero", "3", "--bf16", "true", "--bf16-master-weights"],
    "bf16": ["--zero", "2", "--bf16", "true"],
}


@pytest.fixture(scope="module")
def runs(tiny, pairs, tmp_path_factory):
    root = tmp_path_factory.mktemp("speed")
    data = ["--train-file", pairs["train"], "--validation-split-percentage", "0", "--save-strategy", "no"]
    start = ["--model", tiny["llama"], *data, *SHORT, *SHAPE]
    many_runs([[*start, *flags, "--output", str(root / name)] for name, flags in RUNS.items()], ranks=1, scratch=root)
    return root


@pytest.mark.parametrize("name", ["compiled", "compiled-ddp"])
def test_compiled_blocks_keep_the_losses(runs, name):
    assert records(runs / name, "loss") == pytest.approx(records(runs / "plain", "loss"), rel=1e-5)
    made = {each["name"]: each for each in json.loads((runs / name / "run.json").read_text())["speed"]["choices"]}
    assert made["torch.compile"]["applied"]


@pytest.mark.parametrize("name", ["master", "master-3"])
def test_bf16_master_weights_train_like_bf16(runs, name):
    """The moments are rounded to 8 bits of mantissa, so the losses agree only to bf16's."""
    assert records(runs / name, "loss") == pytest.approx(records(runs / "bf16", "loss"), rel=2e-2)


def test_safe_applies_nothing_and_is_recorded(runs):
    run = json.loads((runs / "master" / "run.json").read_text())
    assert run["deepspeed"]["bf16"]["bf16_master_weights_and_grads"] is True
    assert run["speed"]["mode"] == "safe"
    assert not any(each["applied"] for each in run["speed"]["choices"])
