"""Eight cells of `make test-faults`, one of each kind."""

from __future__ import annotations

import pytest

from tests.faults.cells import cells
from tests.faults.damage import resume_after
from tests.faults.harness import Bench

pytestmark = pytest.mark.train

SMOKE = (
    "SIGKILL-of-a-rank@optimizer",
    "SIGKILL-of-the-agent@forward",
    "SIGKILL-of-the-supervisor@shards",
    "SIGSTOP-of-a-rank@forward",
    "SIGTERM-to-the-supervisor@evaluating",
    "out-of-memory@forward",
    "deterministic-crash@forward",
)


@pytest.fixture(scope="module")
def bench(tmp_path_factory):
    bench = Bench(tmp_path_factory.mktemp("faults"))
    bench.prepare()
    return bench


@pytest.mark.parametrize("name", SMOKE)
def test_a_fault_costs_nothing(bench, name):
    (cell,) = [each for each in cells() if each.name == name]
    assert bench.run(cell).wrong == []


def test_damage_is_passed_over(bench):
    assert resume_after(bench, "optimizer shard", "a bit flipped", 2).wrong == []
