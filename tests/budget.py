"""A pytest plugin: what tests cost in CPU seconds, and with --budget a limit for each.

Time that a test waits, or is kept from the processor, does not count; that of its child processes does. Free of the
limit are the tests of real engines (marker `train`) and exhaustive ones.

The same work takes more CPU seconds on a slower machine, or beside others that share its caches: a quarter more has
been seen. So a test over the limit is listed, and only one over twice the limit fails the run.
"""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Iterator

import pytest

from tests.forkserver import client

LIMIT_S = 5.0
FAIL_S = 2 * LIMIT_S
FREE = ("train", "exhaustive")
_SLOWEST = 10
_PROPERTY = "cpu_s"


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--budget", action="store_true", help=f"fail when a test takes over {FAIL_S:g} CPU seconds")


def spent() -> tuple[float, float]:
    """CPU seconds of this process, its children that have ended, and processes forked for it.

    The second figure has also what these have left behind, such as the ranks of a run that was killed. That comes in
    late, with another test perhaps, so it is no test's own.
    """
    ours = sum(os.times()[:4])
    servers = (client.HEAVY, client.LIGHT)
    return ours + sum(each.of_forks for each in servers), ours + sum(each.of_all for each in servers)


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
        costs = [after - before for after, before in zip(now, self._since, strict=True)]
        free = any(item.get_closest_marker(name) for name in FREE)
        report.user_properties = [*report.user_properties, (_PROPERTY, [*costs, free])]
        self._since = now
        return report


class Ledger:
    """Sums the reports up; in the process that shows them."""

    def __init__(self, *, limited: bool) -> None:
        self._limited = limited
        self._costs: dict[str, float] = defaultdict(float)
        self._times: dict[str, float] = defaultdict(float)
        self._limited_costs: dict[str, float] = defaultdict(float)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        for name, value in report.user_properties:
            if name == _PROPERTY:
                own, everything, free = value
                self._costs[report.nodeid] += everything
                self._times[report.nodeid] += report.duration
                self._limited_costs[report.nodeid] += 0.0 if free else own

    def over(self, limit_s: float) -> list[str]:
        return [test for test, cost in self._limited_costs.items() if cost > limit_s]

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        if self._limited and self.over(FAIL_S) and session.exitstatus == pytest.ExitCode.OK:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        slowest = sorted(self._costs, key=lambda test: -self._costs[test])[:_SLOWEST]
        terminalreporter.section(f"{sum(self._costs.values()):.0f} CPU seconds; the slowest {len(slowest)}")
        for test in slowest:
            terminalreporter.line(f"{self._costs[test]:7.1f} CPU s {self._times[test]:7.1f} s  {test}")
        for test in self.over(LIMIT_S) if self._limited else ():
            cost = self._limited_costs[test]
            failed = cost > FAIL_S
            terminalreporter.line(
                f"{'FAILED' if failed else 'OVER'} {test}: {cost:.1f} CPU seconds, over the {LIMIT_S:g} of a test "
                f"(make it cheaper, or mark it exhaustive{'' if failed else f'; over {FAIL_S:g} it fails'})",
                red=failed,
                yellow=not failed,
            )


def pytest_configure(config: pytest.Config) -> None:
    config.pluginmanager.register(Meter())
    if not hasattr(config, "workerinput"):
        config.pluginmanager.register(Ledger(limited=config.getoption("--budget")))
