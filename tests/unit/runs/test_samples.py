"""The ledger of samples: what counts after restarts, and what speaks against "every sample once"."""

from __future__ import annotations

from dsrun.runs.records import LineAppender, append_start, append_step, ledger_file, next_attempt
from tests.sample_ledger import ledgers, not_once, seen, steps


def attempt(run, number, start, *ranks):
    """An attempt of len(ranks) ranks; each rank is its list of (epoch, ids) by step."""
    for rank, done in enumerate(ranks):
        with LineAppender(ledger_file(run, rank)) as ledger:
            append_start(ledger, number, step=start, ranks=len(ranks))
            for step, (epoch, ids) in enumerate(done, start + 1):
                append_step(ledger, number, step=step, epoch=epoch, ids=ids)


FIRST = [(0, [0, 1]), (0, [4, 5]), (1, [3, 2])]
SECOND = [(0, [2, 3]), (0, []), (1, [0, 4])]


def test_every_sample_seen_once_in_undisturbed_run(tmp_path):
    """An undisturbed run saw every sample once."""
    attempt(tmp_path, 0, 0, FIRST, SECOND)
    found = ledgers(tmp_path)
    assert not_once(found) == not_once(found, samples=6) == []
    assert {(0, 5), (1, 3)} <= set(seen(found))
    assert set(seen(found).values()) == {1}
    assert seen(found, up_to=1).keys() == {(0, 0), (0, 1), (0, 2), (0, 3)}
    assert next_attempt(tmp_path) == 1


def test_samples_of_repeated_steps_count_once(tmp_path):
    """Samples of steps that were lost and done again count once.

    Killed in step 3, of which only rank 0 could tell; gone on from a checkpoint after step 1.
    """
    attempt(tmp_path, 0, 0, FIRST, SECOND[:2])
    attempt(tmp_path, 1, 1, FIRST[1:], SECOND[1:])
    found = ledgers(tmp_path)
    assert not_once(found) == []
    assert [each.attempts for each in steps(found).values()] == [(0,), (0, 1), (0, 1)]
    assert next_attempt(tmp_path) == 2


def test_samples_after_resume_at_smaller_world_size(tmp_path):
    """Fewer ranks go on with the samples that more ranks had begun."""
    attempt(tmp_path, 0, 0, FIRST, SECOND)
    attempt(tmp_path, 1, 1, [(0, [4, 5]), (1, [3, 2, 0, 4])])
    assert not_once(ledgers(tmp_path), samples=6) == []
    assert [each.ranks for each in steps(ledgers(tmp_path)).values()] == [2, 1, 1]


def test_lost_data_position_shows_as_repeated_samples(tmp_path):
    """A lost data position shows in the samples. Gone on at step 2 with the samples of step 1 again."""
    attempt(tmp_path, 0, 0, [(0, [0, 1]), (0, [2, 3])])
    attempt(tmp_path, 1, 1, [(0, [0, 1]), (1, [0, 1])])
    assert not_once(ledgers(tmp_path), samples=4) == [
        "epoch 0: 2 samples were seen more than once: 0, 1",
        "epoch 0: 2 samples were seen never: 2, 3",
    ]


def test_missing_steps_and_ranks_of_sample_log_named(tmp_path):
    """Steps and ranks that are missing are named."""
    attempt(tmp_path, 0, 0, FIRST, SECOND[:2])
    attempt(tmp_path, 1, 4, [(1, [1])])
    words = not_once(ledgers(tmp_path))
    assert "step 3 has lines from 1 ranks instead of 2" in words
    assert "step 4 is in no ledger" in words


def test_sample_log_checked_from_its_first_step(tmp_path):
    """A sample log that was switched on later is checked from there on."""
    attempt(tmp_path, 0, 7, [(2, [5, 6]), (3, [1, 2])])
    assert not_once(ledgers(tmp_path), samples=100) == []
    assert not_once(ledgers(tmp_path), samples=2) == [
        "epoch 2: 2 samples were seen though there is none such: 5, 6",
        "epoch 3: 1 samples were seen though there is none such: 2",
    ]


def test_missing_sample_log_proves_nothing(tmp_path):
    """Without a sample log nothing is proved."""
    assert not_once(ledgers(tmp_path)) == ["there is no sample ledger"]
    attempt(tmp_path, 0, 0, [])
    assert not_once(ledgers(tmp_path)) == ["the sample ledger contains no step"]


def test_torn_line_of_sample_log_skipped(tmp_path):
    """A torn line is skipped."""
    attempt(tmp_path, 0, 0, FIRST[:1])
    with ledger_file(tmp_path, 0).open("a") as file:
        file.write('{"attempt": 0, "step": 2, "ids": [')
    attempt(tmp_path, 1, 1, FIRST[1:])
    assert list(steps(ledgers(tmp_path))) == [1, 2, 3]
