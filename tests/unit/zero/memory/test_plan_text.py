"""A plan's table: strategies that a user cannot tell apart share a row, the choice has its own, and none is lost."""

from __future__ import annotations

import re

import pytest

from dsrun.zero.memory.model.count import describe
from dsrun.zero.memory.plan import MemoryPlan, plan
from dsrun.zero.memory.plan_request import PlanRequest, cluster
from dsrun.zero.memory.plan_text import HEADINGS, plan_rows

SMALL = {"model_type": "t5", "d_model": 64, "d_ff": 128, "num_layers": 2, "num_heads": 4, "vocab_size": 1000}
LLAMA = {
    "model_type": "llama", "hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 32,
    "num_attention_heads": 32, "num_key_value_heads": 8, "vocab_size": 128256,
}  # fmt: skip
# Each with every verdict, or with one alone.
PLANS = {
    "small": (SMALL, "a100-80:8", {}),
    "large": (LLAMA, "a100-80:8", {"length": 2048, "global_batch": 64}),
    "scarce": (LLAMA, "l4:2", {"host_memory": 64.0}),
    "nothing": (LLAMA, "l4:2", {"stage": 1}),
}


def planned(name: str) -> MemoryPlan:
    config, gpus, more = PLANS[name]
    return plan(PlanRequest(model=describe(config), cluster=cluster(gpus), **{"length": 1024, **more}))


def named(text: str) -> set[tuple[int, str]]:
    """(stage, place) of every strategy in a row's text."""
    found = re.findall(r"ZeRO-(\d)(?: to (\d))?(?: \+ (\w+))?", text)
    return {(stage, place) for low, high, place in found for stage in range(int(low), int(high or low) + 1)}


@pytest.mark.parametrize("name", PLANS)
@pytest.mark.parametrize("every", [False, True])
def test_no_strategy_is_left_out(name: str, every: bool) -> None:
    made = planned(name)
    heads, *rows = plan_rows(made, every=every)
    places = {(row.strategy.stage, row.strategy.offload.replace("none", "")) for row in made.rows}
    assert heads == HEADINGS
    assert set().union(*(named(row[-1]) for row in rows)) == places
    assert len(rows) == len(made.rows) if every else len(rows) < len(made.rows)


@pytest.mark.parametrize("name", ["small", "large", "scarce"])
def test_choice_comes_first_and_alone(name: str) -> None:
    made = planned(name)
    _, first, *others = plan_rows(made, every=False)
    assert made.choice is not None
    assert named(first[-1]) == {(made.choice.strategy.stage, made.choice.strategy.offload.replace("none", ""))}
    assert "(recommended)" in first[-1]
    assert not [row for row in others if "(recommended)" in row[-1]]


def test_small_model_needs_few_rows() -> None:
    """It fits everywhere, about equally fast: a row with and without recomputing, and NVMe apart."""
    _, *rows = plan_rows(planned("small"), every=False)
    assert len(rows) <= 6
    assert "ZeRO-1 to 3, ZeRO-1 to 3 + cpu, ZeRO-3 + optimizer" in [row[-1] for row in rows]


@pytest.mark.parametrize("name", PLANS)
def test_figures_leave_half_of_a_narrow_terminal(name: str) -> None:
    """At 60 columns the strategies have 30, in which they are wrapped."""
    columns = list(zip(*plan_rows(planned(name), every=False), strict=True))[:-1]
    assert sum(max(map(len, column)) + 2 for column in columns) <= 30
