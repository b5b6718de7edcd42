"""What a longer training takes, told by a run's records."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta

import pytest

from dsrun.errors import UsageError
from dsrun.monitoring.quote import CHECKED_S, Quote, measured, number_of_tokens

START = datetime(2026, 11, 28, tzinfo=UTC)


def write(folder, moments, *, world=4, per_step=1000, status=None, epoch=None):
    """A run with a step at each of the seconds in `moments`, the first a pair of attempt's begin and second."""
    folder.mkdir(exist_ok=True)
    (folder / "run.json").write_text(json.dumps({"world_size": world, "gpus": ["NVIDIA H200"] * world}))
    rows = []
    for step, (began, at) in enumerate(moments, 1):
        time = (START + timedelta(seconds=at)).strftime("%Y-%m-%dT%H:%M:%S.%f")[:-3] + "Z"
        row = {"time": time, "elapsed": at - began, "step": step, "loss": 1.0, "tokens": step * per_step}
        rows.append(row | ({"epoch": step * epoch} if epoch else {}))
    (folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (folder / "events.jsonl").write_text("")
    if status:
        (folder / "status").mkdir()
        (folder / "status" / "node-0.json").write_text(json.dumps(status))
    return folder


def even(count, seconds=1.0):
    return [(0, seconds * at) for at in range(count)]


def test_speed_leaves_out_what_came_before_the_first_step(tmp_path):
    run = measured(write(tmp_path / "run", [(0, 500 + at) for at in range(11)]))
    assert run.tokens_per_s == pytest.approx(1000)
    quote = Quote(run=run, tokens=7_200_000)
    assert (quote.hours, quote.gpu_hours) == pytest.approx((2.0, 8.0))


def test_run_on_cpus_has_no_gpu_hours(tmp_path):
    folder = write(tmp_path / "run", even(11))
    (folder / "run.json").write_text('{"world_size": 4, "gpus": []}')
    quote = Quote(run=measured(folder), tokens=7_200_000)
    assert (quote.hours, quote.gpu_hours) == (pytest.approx(2.0), None)


def test_only_the_last_attempt_counts(tmp_path):
    """What the ranks' second start took is no step."""
    moments = [*even(5), *((100, 100 + 2 * at) for at in range(1, 6))]
    assert measured(write(tmp_path / "run", moments)).tokens_per_s == pytest.approx(500)


def test_epochs_are_tokens_of_the_data(tmp_path):
    assert measured(write(tmp_path / "run", even(5), epoch=0.25)).epoch == pytest.approx(4000)
    assert measured(write(tmp_path / "other", even(5))).epoch is None


@pytest.mark.parametrize(("later", "check"), [(1.0, 0.0), (1.5, 0.5)])
def test_first_minute_is_held_against_the_rest(tmp_path, later, check):
    whole = even(int(CHECKED_S) + 1)
    slower = [(0, CHECKED_S + later * at) for at in range(1, 101)]
    assert measured(write(tmp_path / "run", [*whole, *slower])).check == pytest.approx(check)
    assert measured(write(tmp_path / "short", whole)).check is None


def test_energy_is_known_where_all_gpus_told_their_power(tmp_path):
    def node(*watts):
        gpus = [
            {"index": at, "name": "x", "uuid": f"{at}", "power_w": each, "power_limit_w": 700.0}
            for at, each in enumerate(watts)
        ]
        return {"time": "2026-11-28T00:00:10.000Z", "host": "a", "node": 0, "attempt": 0, "world_size": 2, "gpus": gpus}

    run = measured(write(tmp_path / "run", even(5), world=2, status=node(300.0, 400.0)))
    assert Quote(run=run, tokens=3_600_000).kwh == pytest.approx((0.7, 1.4))
    silent = measured(write(tmp_path / "silent", even(5), world=2, status=node(300.0, None)))
    assert Quote(run=silent, tokens=3_600_000).kwh is None


def test_run_of_one_step_is_refused(tmp_path):
    with pytest.raises(UsageError):
        measured(write(tmp_path / "run", even(1)))


@pytest.mark.parametrize(
    ("text", "tokens"), [("10B", 10**10), ("1.5t", 15 * 10**11), ("300_000", 300_000), ("2k", 2000), ("0.5M", 500_000)]
)
def test_numbers_of_tokens(text, tokens):
    assert number_of_tokens(text) == tokens


@pytest.mark.parametrize("text", ["", "0", "-3", "10X", "B", "1e400"])
def test_what_is_no_number_of_tokens(text):
    with pytest.raises(UsageError):
        number_of_tokens(text)
