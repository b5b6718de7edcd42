"""The configurations of `python -m bench lint`; how engines end: test_bench_processes.py."""

from __future__ import annotations

from bench.lint import linter_says
from bench.lint_configs import configuration


def test_a_configuration_can_be_repeated():
    assert configuration(3, 8) == configuration(3, 8)
    assert len({str(configuration(3, number)) for number in range(20)}) == 20


def test_configurations_are_right_and_wrong():
    """Where nearly all are refused, for one reason or another, a wrong reason is not seen."""
    refused = sum(bool(linter_says(*configuration(1, number))) for number in range(100))
    assert 25 < refused < 75
