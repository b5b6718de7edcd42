"""The training flags in force, for comparing them with a DeepSpeed JSON."""

import pytest

from dsrun.errors import UsageError
from dsrun.recipe.batch import trainer_values
from dsrun.recipe.resolve import given_values


def values(*argv, world_size=None, folder=None, run_file=None):
    given = given_values(argv, folder, [], run_file)
    return trainer_values({name: each.value for name, each in given.items()}, world_size)


def test_default_flags_in_force_are_trainer_defaults():
    found = values()
    assert (found["learning_rate"], found["per_device_train_batch_size"], found["max_grad_norm"]) == (
        5e-5,
        8,
        1.0,
    )
    assert "train_batch_size" not in found


def test_flags_in_force_command_line_over_run_file(tmp_path):
    """The command line wins over the run file, and removed flags count."""
    (tmp_path / "run.yaml").write_text("train:\n  learning_rate: 1e-4\n  warmup_ratio: 0.1\n")
    found = values("--learning_rate", "2e-4", folder=tmp_path, run_file="run.yaml")
    assert (found["learning_rate"], found["warmup_steps"]) == (2e-4, 0.1)


@pytest.mark.parametrize(
    ("argv", "world", "sizes"),
    [
        (("--micro-batch-size", "4"), None, (4, 1, None)),
        (("--global-batch-size", "64"), None, (None, None, 64)),
        (("--global-batch-size", "64"), 4, (8, 2, 64)),
        (("--global-batch-size", "64", "--micro-batch-size", "4"), None, (4, None, 64)),
        (("--global-batch-size", "64", "--per_device_train_batch_size", "4"), 8, (4, 2, 64)),
    ],
)
def test_batch_sizes_in_force(argv, world, sizes):
    found = values(*argv, world_size=world)
    names = ("per_device_train_batch_size", "gradient_accumulation_steps", "train_batch_size")
    assert tuple(found.get(name) for name in names) == sizes


def test_indivisible_batch_sizes_rejected():
    with pytest.raises(UsageError, match="does not divide"):
        values("--global-batch-size", "10", world_size=4)
