"""For all tests: what they cost, what ends what they leave behind, and how hypothesis looks for examples."""

from __future__ import annotations

import os
import signal

import pytest
from hypothesis import HealthCheck, settings

from tests.reaper import Reaper

pytest_plugins = ["tests.budget", "tests.rotation"]

# Two ranks on two cores compute on a thread each, and so does what they are compared with.
os.environ["OMP_NUM_THREADS"] = "1"
# Ranks print into one pipe: a line that Python writes in pieces would be torn by another's.
os.environ.pop("PYTHONUNBUFFERED", None)
# The tests compare English sentences, also on the machine of somebody who reads Chinese ones.
for variable in ("DSRUN_LANG", "LC_ALL", "LC_MESSAGES", "LANG"):
    if os.environ.get(variable, "").startswith("zh"):
        os.environ[variable] = "C.UTF-8"

# A machine that is busy for a moment must not fail a property: neither by the 200 ms that an example may take, nor by
# the second in which the first ten are to be made. The examples follow from the test, so that whoever breaks a property
# is told, and not whoever comes by later.
settings.register_profile("always", deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
# To look for rarer ones by hand: --hypothesis-profile=far
settings.register_profile(
    "far",
    deadline=None,
    derandomize=False,
    max_examples=20_000,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("always")


def pytest_configure(config: pytest.Config) -> None:
    # A shell without job control starts what it puts into the background with these ignored, and so would be all that
    # the tests start.
    for signum in (signal.SIGINT, signal.SIGQUIT, signal.SIGHUP):
        if signal.getsignal(signum) is signal.SIG_IGN:
            signal.signal(signum, signal.default_int_handler if signum == signal.SIGINT else signal.SIG_DFL)
    if not hasattr(config, "workerinput"):
        config.add_cleanup(Reaper().finish)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The file that takes longest goes first: at the end all workers but one would wait for it."""
    items.sort(key=lambda item: item.path.name != "test_wheel_build.py")
