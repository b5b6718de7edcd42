"""What of a run folder is read, and which of its files counts where several tell the same."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from dsrun.runs.node_status import NodeStatus, write_node_status
from dsrun.runs.reader import read_history
from tests.run_folders import RUN, at, event, write_run


def test_evaluations_of_one_step_are_all_kept(tmp_path: Path) -> None:
    lines = [{"step": 5, "eval_loss": 2.0}, {"step": 9, "eval_loss": 1.0}, {"step": 9, "eval_loss": 0.5}]
    history = read_history(write_run(tmp_path, metrics=lines))
    assert history.series("eval_loss") == [(5, 2.0), (9, 1.0), (9, 0.5)]


def test_recipe_stands_for_run_json_until_that_is_written(tmp_path: Path) -> None:
    recipe = {"values": {"learning_rate": 1.0}, "sources": {"learning_rate": "recipe"}}
    write_run(tmp_path, run=None)
    (tmp_path / "recipe.json").write_text(json.dumps(recipe))
    history = read_history(tmp_path)
    assert (history.recipe, history.settings, history.sources) == (recipe, recipe["values"], recipe["sources"])
    history = read_history(write_run(tmp_path))
    assert (history.recipe, history.settings, history.sources) == ({}, RUN["specs"]["train"], RUN["sources"])


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("run.json", json.dumps(RUN)),
        *((name, "{}") for name in ("run.json", "recipe.json", ".lock", "status/node-0.json")),
    ],
)
def test_run_begins_before_its_first_event(tmp_path: Path, name: str, text: str) -> None:
    (tmp_path / name).parent.mkdir(exist_ok=True)
    (tmp_path / name).write_text(text)
    assert read_history(tmp_path).events == ()


def test_nodes_of_a_former_start_are_not_present(tmp_path: Path) -> None:
    """A restart within a start changes nothing."""
    starts = [event("start", second, attempt=attempt) for second, attempt in ((0, 0), (50, 0), (90, 1))]
    write_run(tmp_path, events=starts)
    for number, second in enumerate((49, 50, 91)):
        status = NodeStatus(time=at(second), host="gpu01", node=number, attempt=0, world_size=3)
        write_node_status(tmp_path, status)
    assert [node.node for node in read_history(tmp_path).present_nodes] == [1, 2]
