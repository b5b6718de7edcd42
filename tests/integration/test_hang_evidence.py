"""What the evidence says of real ranks, one of which hangs: as `python -m tests.faults.hangs`, with three ranks."""

from __future__ import annotations

import pytest

from tests.faults.hangs import inject

pytestmark = pytest.mark.train


@pytest.mark.parametrize(
    ("kind", "variant", "line"),
    [
        ("loader", 0, "2 of 3 ranks in all_reduce; rank 1 in DataLoader.__next__"),
        ("stopped", 1, "2 of 3 ranks in all_reduce of gradients in the backward pass; rank 1 stopped (SIGSTOP)"),
        ("other collective", 0, "2 of 3 ranks in all_reduce; rank 1 in barrier"),
    ],
)
def test_rank_that_hangs_is_named(kind, variant, line, tmp_path):
    result = inject(kind, 1, variant, tmp_path, ranks=3)
    assert result.hang.rank == 1
    assert result.hang.message.endswith(line)
    assert result.hang.stopped == (kind == "stopped")
