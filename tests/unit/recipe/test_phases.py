"""Which phases a run has, by its flags."""

import pytest

from dsrun.errors import UsageError
from dsrun.recipe.recipe import phases
from dsrun.recipe.resolve import resolve


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        ("", {"train", "validation"}),
        ("--do_train", {"train"}),
        ("--do_eval", {"validation"}),
        ("--do_train --do_predict", {"train", "test"}),
        ("--do_train --eval_strategy epoch", {"train", "validation"}),
        ("--do_eval false", {"train"}),
        ("--no-do-train", {"validation"}),
        ("--do_train false --do_predict", {"test"}),
        ("--do_eval false --early-stopping 2", {"train", "validation"}),
    ],
)
def test_phases_from_flags(tmp_path, flags, expected):
    assert phases(resolve(["--model", "demo-t5", *flags.split()], tmp_path)) == expected


def test_run_without_phases_rejected(tmp_path):
    with pytest.raises(UsageError, match="there is nothing to do"):
        resolve(["--model", "demo-t5", "--do_train", "false", "--do_eval", "false"], tmp_path)


def test_streaming_evaluation_needs_no_max_steps(tmp_path):
    """A stream needs no end where nothing is trained."""
    resolve(["--model", "demo-t5", "--streaming", "--do_train", "false"], tmp_path)
    with pytest.raises(UsageError, match="--streaming needs to know when to stop"):
        resolve(["--model", "demo-t5", "--streaming", "--do_eval", "false"], tmp_path)


@pytest.mark.parametrize(
    ("flags", "notice"),
    [
        (
            "--max-steps 9 --do-predict",
            "--max_steps has no effect: with --do-eval or --do-predict alone nothing is trained",
        ),
        ("--num_train_epochs 2 --do-eval", "--num_train_epochs has no effect"),
        ("--test-file test.jsonl", "--test-file has no effect without --do-predict"),
    ],
)
def test_flags_of_other_phases_reported(tmp_path, flags, notice):
    assert any(each.startswith(notice) for each in resolve(["--model", "demo-t5", *flags.split()], tmp_path).notices)


@pytest.mark.parametrize(
    "flags", ["--max-steps 9 --do-predict --do-train", "--do_train false --max-steps 9 --do-predict"]
)
def test_flags_of_chosen_phases_not_reported(tmp_path, flags):
    assert not [each for each in resolve(["--model", "demo-t5", *flags.split()], tmp_path).notices if "effect" in each]
