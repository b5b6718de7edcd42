"""What the supervisor says at the end by Ctrl-C, and while ranks are at work."""

from types import SimpleNamespace
from typing import get_args

import pytest

from dsrun.launch.supervisor.supervise import _Supervision
from dsrun.runs.heartbeat import HeartbeatWriter, RankPhase, activity, read_beats

BOTH = "the same command with --output run"


def said(steps, newest, *, node=0, resumes=True, again="the same command"):
    supervision = SimpleNamespace(
        _job=SimpleNamespace(node_rank=node, resumes=resumes, again=again), _newest=lambda: newest
    )
    supervision._again = lambda *, resume: _Supervision._again(supervision, resume=resume)
    end = None if steps is None else SimpleNamespace(failure_inputs=SimpleNamespace(steps=steps))
    return _Supervision._interrupted(supervision, end)


@pytest.mark.parametrize(
    ("steps", "newest", "more", "words"),
    [
        ({0: 7, 1: 8}, 5, {}, "interrupted at step 8; checkpoint-5 is complete: run the same command to go on"),
        ({0: 7}, 0, {}, "interrupted at step 7, no checkpoint yet: the same command starts anew"),
        ({}, 0, {"again": BOTH}, f"interrupted before training began, no checkpoint yet: {BOTH} starts anew"),
        (
            None, 5, {"resumes": False},
            "interrupted before training began; checkpoint-5 is complete: "
            "run the same command with --resume auto to go on",
        ),
        ({0: 7}, 0, {"resumes": False}, "interrupted at step 7, no checkpoint yet: the same command starts anew"),
        ({0: 7}, None, {}, "interrupted at step 7"),
        ({0: 7}, 5, {"node": 1}, None),
    ],
)  # fmt: skip
def test_words_at_ctrl_c_promise_what_is_true(steps, newest, more, words):
    assert said(steps, newest, **more) == words


def test_every_phase_of_a_rank_has_words(tmp_path):
    """But for code of the user's own."""
    heart = HeartbeatWriter(tmp_path, 0)
    words = {}
    for phase in get_args(RankPhase):
        heart.enter(phase)
        words[phase] = activity(read_beats(tmp_path)[0])[0]
    assert {phase for phase in words if not words[phase]} == {"running"}
    heart.step(12)
    assert activity(read_beats(tmp_path)[0]) == ("training", ", step 12")
