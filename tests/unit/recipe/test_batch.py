import pytest
from hypothesis import given
from hypothesis import strategies as st

from dsrun.errors import UsageError
from dsrun.recipe.batch import BatchPlan, batch_plan


def plan(world, *, total=None, micro=None, steps=None, default=8):
    return batch_plan(
        global_batch_size=total,
        micro_batch_size=micro,
        accumulation=steps,
        world_size=world,
        default_micro=default,
    )


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ({"total": 64, "micro": 4}, "64 = 4 × 8 GPUs × 2 steps"),
        ({"total": 64}, "64 = 8 × 8 GPUs × 1 step"),
        ({"total": 192}, "192 = 8 × 8 GPUs × 3 steps"),
        ({"total": 48}, "48 = 6 × 8 GPUs × 1 step"),
        ({"total": 56}, "56 = 7 × 8 GPUs × 1 step"),
        ({"total": 88}, "88 = 1 × 8 GPUs × 11 steps"),
        ({"total": 64, "steps": 2}, "64 = 4 × 8 GPUs × 2 steps"),
        ({"total": 256, "steps": 2}, "256 = 16 × 8 GPUs × 2 steps"),
        ({"total": 64, "micro": 4, "steps": 2}, "64 = 4 × 8 GPUs × 2 steps"),
        ({"micro": 4}, "32 = 4 × 8 GPUs × 1 step"),
        ({"micro": 4, "steps": 2}, "64 = 4 × 8 GPUs × 2 steps"),
        ({"steps": 2}, "128 = 8 × 8 GPUs × 2 steps"),
        ({}, "64 = 8 × 8 GPUs × 1 step"),
    ],
)
def test_batch_plan_derives_missing_sizes(arguments, sentence):
    """What is not given follows from what is."""
    assert str(plan(8, **arguments)) == sentence


def test_batch_plan_sentence_names_devices():
    """The sentence for one rank, and for devices other than GPUs."""
    assert plan(1, total=8).sentence() == "8 = 8 × 1 GPU × 1 step"
    assert plan(2, total=8, micro=2).sentence("CPU rank") == "8 = 2 × 2 CPU ranks × 2 steps"


@pytest.mark.parametrize(
    ("world", "arguments", "message"),
    [
        (
            8,
            {"total": 60, "micro": 4},
            "global batch 60 does not divide by 4 × 8 ranks (use --global-batch-size 32 or 64)",
        ),
        (
            8,
            {"total": 96, "micro": 5},
            "global batch 96 does not divide by 5 × 8 ranks"
            " (use --global-batch-size 80 or 120, or --micro-batch-size 2, 3, 4 or 6)",
        ),
        (3, {"total": 64}, "global batch 64 does not divide by 3 ranks (use --global-batch-size 63 or 66)"),
        (8, {"total": 4}, "global batch 4 does not divide by 8 ranks (use --global-batch-size 8)"),
        (
            8,
            {"total": 40, "steps": 2},
            "global batch 40 does not divide by 8 ranks × 2 steps (use --global-batch-size 32 or 48)",
        ),
        (
            8,
            {"total": 64, "micro": 4, "steps": 3},
            "global batch 64 is not 4 × 8 ranks × 3 steps = 96"
            " (leave out one of the three, or use --gradient_accumulation_steps 2)",
        ),
    ],
)
def test_indivisible_global_batch_error_suggests_sizes(world, arguments, message):
    """An error about sizes that do not divide names those that do."""
    with pytest.raises(UsageError) as caught:
        plan(world, **arguments)
    assert str(caught.value) == message


sizes = st.integers(1, 300)
maybe = st.none() | st.integers(1, 40)


@given(total=st.none() | sizes, micro=maybe, steps=maybe, world=st.integers(1, 16), default=st.integers(1, 16))
def test_batch_plan_multiplies_out_to_global_batch(total, micro, steps, world, default):
    """A plan multiplies out and keeps what was given."""
    try:
        found = plan(world, total=total, micro=micro, steps=steps, default=default)
    except UsageError:
        assert total is not None
        return
    assert found.global_batch == found.micro_batch * found.world_size * found.accumulation
    assert total in (None, found.global_batch)
    assert micro in (None, found.micro_batch)
    assert steps in (None, found.accumulation)
    assert found.world_size == world
    if micro is None and steps is None:
        assert found.micro_batch <= default


@given(total=sizes, micro=st.integers(1, 40), world=st.integers(1, 16))
def test_suggested_batch_sizes_divide(total, micro, world):
    """The sizes that an error names do divide."""
    try:
        plan(world, total=total, micro=micro)
    except UsageError as error:
        batches, _, micros = error.fix.partition(", or --micro-batch-size ")
        for word in batches.removeprefix("use --global-batch-size ").split(" or "):
            assert isinstance(plan(world, total=int(word), micro=micro), BatchPlan)
        for word in micros.replace(" or ", ", ").split(", ") if micros else []:
            assert isinstance(plan(world, total=total, micro=int(word)), BatchPlan)
