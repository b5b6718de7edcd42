"""A pytest plugin: what tests cost in CPU seconds, and with --budget a limit for each.

Time that a test waits, or is kept from the processor, does not count; that of its child processes does. Free of the
limit are the tests of real engines (marker `train`) and exhaustive ones.
"""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Iterator

import pytest

from tests.forkserver import client

LIMIT_S = 5.0
_SLOWEST = 10
_PROPERTY = "cpu_s"
_FREE = "free_of_budget"


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--budget", action="store_true", help=f"fail when a test takes over {LIMIT_S:g} CPU seconds"
    )


def spent() -> float:
    """CPU seconds of this process, of its children that have ended, and of processes forked for it."""
    times = os.times()
    return sum(times[:4]) + client.HEAVY.cpu_seconds + client.LIGHT.cpu_seconds


class Meter:
    """Writes into each report what its phase has cost; in the process that runs the tests."""

    def __init__(self) -> None:
        self._since = spent()

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_logstart(self) -> None:
        self._since = spent()

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(self, item: pytest.Item) -> Iterator[None]:
        report = yield
        now = spent()
        report.user_properties = [*report.user_properties, (_PROPERTY, now - self._since)]
        self._since = now
        if item.get_closest_marker("train") or item.get_closest_marker("exhaustive"):
            report.user_properties.append((_FREE, True))
        return report


class Ledger:
    """Sums the reports up; in the process that shows them."""

    def __init__(self, *, limited: bool) -> None:
        self._limited = limited
        self._costs: dict[str, float] = defaultdict(float)
        self._times: dict[str, float] = defaultdict(float)
        self._free: set[str] = set()

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        for name, value in report.user_properties:
            if name == _PROPERTY:
                self._costs[report.nodeid] += value
                self._times[report.nodeid] += report.duration
            elif name == _FREE:
                self._free.add(report.nodeid)

    def over(self) -> list[str]:
        return [test for test, cost in self._costs.items() if cost > LIMIT_S and test not in self._free]

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        if self._limited and self.over() and session.exitstatus == pytest.ExitCode.OK:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        slowest = sorted(self._costs, key=lambda test: -self._costs[test])[:_SLOWEST]
        terminalreporter.section(f"{sum(self._costs.values()):.0f} CPU seconds; the slowest {len(slowest)}")
        for test in slowest:
            terminalreporter.line(f"{self._costs[test]:7.1f} CPU s {self._times[test]:7.1f} s  {test}")
        for test in self.over() if self._limited else ():
            terminalreporter.line(
                f"FAILED {test}: {self._costs[test]:.1f} CPU seconds, over the {LIMIT_S:g} that a test may take "
                "(make it cheaper, or mark it exhaustive)",
                red=True,
            )


def pytest_configure(config: pytest.Config) -> None:
    config.pluginmanager.register(Meter())
    if not hasattr(config, "workerinput"):
        config.pluginmanager.register(Ledger(limited=config.getoption("--budget")))
