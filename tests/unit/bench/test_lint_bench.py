"""The configurations of `python -m bench lint`, and what it makes of engines that die."""

from __future__ import annotations

import multiprocessing
import os
import signal

import pytest

from bench.lint import _first_error, linter_says
from bench.lint_configs import configuration

FORK = multiprocessing.get_context("fork")


def test_a_configuration_can_be_repeated():
    assert configuration(3, 8) == configuration(3, 8)
    assert len({str(configuration(3, number)) for number in range(20)}) == 20


def test_configurations_are_right_and_wrong():
    """Where nearly all are refused, for one reason or another, a wrong reason is not seen."""
    refused = sum(bool(linter_says(*configuration(1, number))) for number in range(100))
    assert 25 < refused < 75


def answering(sender):
    sender.send("AssertionError: no")


def dying(sender):
    os._exit(7)


def waiting(sender):
    signal.signal(signal.SIGALRM, signal.SIG_DFL)  # pytest's limit for a test has one
    signal.alarm(1)
    signal.pause()


@pytest.mark.parametrize(("end", "told"), [(answering, "AssertionError: no"), (dying, "7"), (waiting, "did not end")])
def test_how_an_engine_ends_is_told(end, told):
    receiver, sender = FORK.Pipe(duplex=False)
    process = FORK.Process(target=end, args=(sender,))
    process.start()
    sender.close()
    assert told in _first_error({receiver: process})
    process.join()
