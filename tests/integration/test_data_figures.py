"""What a run says of its data before the first step, on one rank and on two, and again from the cache."""

import json

import pytest

from tests.integration.conftest import dsrun, phrase

pytestmark = pytest.mark.train

GOOD, BATCH = 21, 8


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """Sources of 2 to 12 words, and two rows that are left out."""
    file = tmp_path_factory.mktemp("rows") / "train.jsonl"
    rows = [{"source": phrase(i, 2 + i % 11), "target": phrase(i, 3), "id": i} for i in range(GOOD)]
    rows.insert(4, {"source": "w1", "target": None})
    file.write_text("".join(json.dumps(row) + "\n" for row in rows) + "{broken\n")
    return file


@pytest.mark.parametrize(("ranks", "more"), [(1, []), (2, ["--max-source-length", "10"]), (1, ["--streaming"])])
def test_figures_of_run_json_are_those_of_training(ranks, more, tiny, data, tmp_path):
    done = dsrun(
        "--model", tiny["t5"], "--zero", "0", "--use-cpu", "--nproc", ranks, "--train-file", data, "--max-steps", "3",
        "--global-batch-size", BATCH, "--micro-batch-size", "4", "--train-sampling-strategy", "sequential",
        "--logging-steps", "3", "--max-bad-rows", "0.1", *more, output=tmp_path / "run",
    ).ok()  # fmt: skip
    found = json.loads((done.folder / "run.json").read_text())["data"]
    (split,) = found["splits"]
    assert split["unread"] == ["id"]
    assert "\n  not read " in done.err
    if "--streaming" in more:
        assert (found["samples"], found["steps_per_epoch"], found["padding"], split["rows"]) == (None,) * 4
        return
    assert (found["samples"], found["global_batch"], found["steps_per_epoch"]) == (GOOD, BATCH, 3)
    dropped = {reason: each["rows"] for reason, each in split["dropped"].items()}
    assert (split["rows"], dropped) == (GOOD + 2, {"no_target": 1, "unreadable": 1})
    if ranks == 1:
        widths = [2 + i % 11 + 1 for i in range(GOOD)]
        cells = sum(4 * (max(widths[i : i + 4]) + 4) for i in range(0, GOOD, 4))
        assert found["padding"] == pytest.approx(1 - (sum(widths) + 4 * GOOD) / cells)
    else:
        assert split["truncated"] == sum(2 + i % 11 + 1 > 10 for i in range(GOOD)) / GOOD
        assert "--max-source-length" in done.err
    assert [name for name in ("dropped", "samples", "padding") if f"\n  {name} " in done.err] == [
        "dropped",
        "samples",
        "padding",
    ]


def test_fewer_samples_than_a_batch_and_the_flag_that_helps(tiny, data, tmp_path):
    flags = ["--model", tiny["t5"], "--zero", "0", "--use-cpu", "--nproc", "2", "--train-file", data]
    flags += ["--max-steps", "1", "--max-bad-rows", "0.1", "--micro-batch-size", "2"]
    done = dsrun(*flags, "--global-batch-size", "64", output=tmp_path / "wide").ok()
    (line,) = [line for line in done.err.splitlines() if line.startswith("  samples ")]
    assert f"--global-batch-size to {GOOD // 4 * 4}" in line
    again = dsrun(*flags, "--global-batch-size", GOOD // 4 * 4, output=tmp_path / "fits").ok()
    assert json.loads((again.folder / "run.json").read_text())["data"]["steps_per_epoch"] == 2
