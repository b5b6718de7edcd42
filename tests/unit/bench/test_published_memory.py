"""`python -m bench plan`: published figures are read whole, and compared with the same quantity of the plan."""

from __future__ import annotations

from dataclasses import replace

import pytest

from bench import plan
from dsrun.zero.memory.model.count import describe
from dsrun.zero.memory.rank.buffers import CUDA_CONTEXT, NCCL_BUFFERS

PUBLISHED = list(plan.published())
MEASURED = list(plan.measured())
BY_ID = {record.id: record for record in PUBLISHED + MEASURED}


def test_every_record_has_a_source_and_its_own_id():
    assert all(record.source.startswith("https://") and record.printed > 0 for record in PUBLISHED)
    assert len(BY_ID) == len(PUBLISHED) + len(MEASURED)
    assert sum(not record.beyond for record in PUBLISHED) >= 40
    assert sum(record.trainer != "own" and not record.beyond for record in PUBLISHED + MEASURED) >= 48


@pytest.mark.parametrize(("unit", "size"), [("GB", 10**9), ("GiB", 2**30), ("MB", 2**20)])
def test_figures_are_in_their_sources_units(unit, size):
    assert replace(BY_ID["litgpt/falcon-7b-lora"], unit=unit).bytes == 16.69 * size


@pytest.mark.parametrize(
    ("name", "beside"),
    [("litgpt/llama-2-7b-lora", CUDA_CONTEXT), ("fsdp-qlora/7b-lora-2048", CUDA_CONTEXT + NCCL_BUFFERS)],
)
def test_plan_says_what_the_record_measured(name, beside):
    allocated, reserved, device = (
        plan.predict(replace(BY_ID[name], measured=each)) for each in ("allocated", "reserved", "device")
    )
    assert allocated < reserved == device - beside


def test_measured_runs_are_planned_as_their_own_test_does():
    """The H100's third, whose peak is in the optimizer's step (docs/benchmarks.md)."""
    assert plan.predict(BY_ID["h100/LLAMA_1B-3"]) / 2**30 == pytest.approx(28.90, abs=0.01)


def test_gradients_of_a_layer_take_the_place_of_its_activations():
    """Full training of 7B, a single micro batch a step: 11% too much where both are counted in whole."""
    record = BY_ID["fms/mistral-7b-full-8"]
    assert plan.predict(record) == pytest.approx(record.bytes, rel=0.01)


def test_adapters_on_some_layers_are_planned_as_fewer_on_all():
    """32 × 2 of 8,192 elements, of 4 × 8,192 + 3 × 15,104 in a layer of Llama-2-7B."""
    record = BY_ID["litgpt/llama-2-7b-lora"]
    model = describe(record.config, from_scratch=True)
    assert plan.rank(record, model) == 7
    assert plan.rank(replace(record, targets=("all",)), model) == 32
    assert plan.rank(replace(record, lora=None), model) is None


def test_what_a_plan_cannot_express_is_listed_and_not_counted(capsys):
    assert plan.main("torchtune/")
    *_, last = rows = capsys.readouterr().out.splitlines()
    assert sum("not counted: torch.compile" in row for row in rows) == 3
    assert last.startswith("other training code: 1, ")


def test_goals_are_those_of_trainings_that_plans_are_for(monkeypatch, capsys):
    """Not of other training code, however far off; of those that plans are for, one that is too low is enough."""
    assert plan.main("fsdp-qlora/7b-lora-cpu")
    low = replace(BY_ID["stock/LLAMA_1B-1"], printed=100.0)
    monkeypatch.setattr(plan, "measured", lambda: [low])
    assert not plan.main("stock/")
    assert "dsrun, Trainer and TRL: 1, " in capsys.readouterr().out
