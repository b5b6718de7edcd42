"""Nine cells of `make test-faults`, one of each kind."""

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
    "input/output-error@committing",
    "deterministic-crash@forward",
)


@pytest.fixture(scope="module")
def bench(tmp_path_factory):
    bench = Bench(tmp_path_factory.mktemp("faults"))
    bench.prepare()
    return bench


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", SMOKE)
def test_fault_injection_run_equals_undisturbed(bench, name):
    """A fault costs nothing: the run ends like the undisturbed one."""
    (cell,) = [each for each in cells() if each.name == name]
    assert bench.run(cell).wrong == []


def test_resume_passes_over_corrupt_checkpoint(bench):
    """A checkpoint with a flipped bit in an optimizer shard is passed over."""
    assert resume_after(bench, "optimizer shard", "a bit flipped", 2).wrong == []
