"""The metrics of run folders: names, values, labels, and how many of them there are."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from dsrun.errors import UsageError
from dsrun.monitoring.prometheus.samples import MOST_RANKS, RunCollector, families, find_runs, metrics, samples
from dsrun.runs.folder import RunFolder
from dsrun.runs.node_status import GpuSample, NodeStatus, RankProgress, write_node_status
from dsrun.runs.reader import read_history

AT = 1795600800.0
TIME = "2026-11-25T10:00:00.000Z"
UNITS = ("seconds", "bytes", "ratio", "watts", "celsius", "hertz", "info", "total")


def write_run(path: Path, *events: dict[str, Any], metrics: tuple[dict[str, Any], ...] = ()) -> Path:
    """A run folder with these events, all at TIME."""
    path.mkdir(parents=True, exist_ok=True)
    for name, lines in (("events.jsonl", events), ("metrics.jsonl", metrics)):
        (path / name).write_text("".join(json.dumps({"time": TIME, **line}) + "\n" for line in lines))
    return path


def values(path: Path) -> dict[tuple[str, str], float]:
    """The samples of a run by name and the values of their labels."""
    found = samples(read_history(path), AT)
    return {(name, ",".join(labels.values())): value for name, labels, value in found}


def test_figures_of_run_are_exported(tmp_path: Path) -> None:
    run = write_run(
        tmp_path / "en-ro",
        {"kind": "start", "world_size": 4},
        {"kind": "training", "step": 0, "max_steps": 80},
        {"kind": "checkpoint_end", "step": 10, "bytes": 1000, "seconds": 2},
        {"kind": "nan", "step": 12},
        {"kind": "failure", "cause": "cuda_oom"},
        {"kind": "start", "attempt": 1},
        metrics=(
            {"step": 20, "loss": 1.5, "lr": 1e-4, "tokens": 640, "tokens_per_s": 32.0, "mfu": None},
            {"step": 20, "eval_loss": 1.25, "eval_bleu": 30.0},
        ),
    )
    found = values(run)
    expected = {
        ("dsrun_step", ""): 20, ("dsrun_max_steps", ""): 80, ("dsrun_loss", ""): 1.5, ("dsrun_ranks", ""): 4,
        ("dsrun_learning_rate", ""): 1e-4, ("dsrun_tokens_total", ""): 640, ("dsrun_tokens_per_second", ""): 32,
        ("dsrun_evaluation", "loss"): 1.25, ("dsrun_evaluation", "bleu"): 30, ("dsrun_nan_steps_total", ""): 1,
        ("dsrun_failures_total", "cuda_oom"): 1, ("dsrun_restarts_total", ""): 1, ("dsrun_checkpoint_bytes", ""): 1000,
        ("dsrun_last_checkpoint_step", ""): 10, ("dsrun_last_step_timestamp_seconds", ""): AT,
    }  # fmt: skip
    assert {key: found[key] for key in expected} == expected
    assert ("dsrun_mfu_ratio", "") not in found


@pytest.mark.parametrize(("end", "restarts"), [({"exit_code": 0}, 0), ({"exit_code": 75}, 1)])
def test_start_after_good_end_is_no_restart(tmp_path: Path, end: dict[str, int], restarts: int) -> None:
    run = write_run(tmp_path, {"kind": "start"}, {"kind": "end", **end}, {"kind": "start"})
    assert values(run)["dsrun_restarts_total", ""] == restarts


def test_exactly_one_state_is_set(tmp_path: Path) -> None:
    run = write_run(tmp_path, {"kind": "start"}, {"kind": "failure", "cause": "cuda_oom"})
    states = {labels: value for (name, labels), value in values(run).items() if name == "dsrun_run_state"}
    assert [state for state, value in states.items() if value] == ["failed"]
    assert len(states) > 5


def test_names_and_units_follow_conventions() -> None:
    """Base units at the end; _total for counters and nothing else."""
    for name, facts in metrics().items():
        assert re.fullmatch(r"dsrun(_[a-z]+)+", name)
        assert name.endswith("_total") == (facts.get("type") == "counter"), name
        assert not re.search(r"_(milliseconds|percent|gib|mib|minutes|hours)$", name)
    assert any(name.endswith(UNITS) for name in metrics())


def test_ranks_and_gpus_of_running_nodes(tmp_path: Path) -> None:
    run = write_run(tmp_path, {"kind": "start"}, {"kind": "training", "step": 0})
    rank = RankProgress(rank=3, pid=1, phase="training", step=5, silent_s=0.5, step_s=2.0, wait_s=0.75)
    gpu = GpuSample(
        index=1, name="H100", utilization=0.9, memory_used=5, clock_mhz=1000, throttled=("hw_thermal_slowdown",)
    )
    node = NodeStatus(time=TIME, host="gpu7", node=0, attempt=0, world_size=4, ranks=(rank,), gpus=(gpu,), cpu=0.5)
    with RunFolder(run).acquire():
        write_node_status(run, node)
        found = values(run)
    assert found["dsrun_rank_step_duration_seconds", "3,gpu7"] == 2.0
    assert found["dsrun_rank_wait_seconds", "3,gpu7"] == 0.75
    assert found["dsrun_gpu_utilization_ratio", "gpu7,1"] == 0.9
    assert found["dsrun_gpu_clock_hertz", "gpu7,1"] == 1e9
    assert found["dsrun_gpu_throttled", "gpu7,1"] == 1
    assert ("dsrun_gpu_power_watts", "gpu7,1") not in found
    assert found["dsrun_host_cpu_ratio", "gpu7"] == 0.5


def test_silent_rank_is_among_those_of_large_run(tmp_path: Path) -> None:
    run = write_run(tmp_path, {"kind": "start"}, {"kind": "training", "step": 0})
    ranks = [
        RankProgress(rank=n, pid=1, phase="training", step=1, silent_s=90.0 if n == 999 else 0.1) for n in range(1000)
    ]
    with RunFolder(run).acquire():
        write_node_status(run, NodeStatus(time=TIME, host="n", node=0, attempt=0, world_size=1000, ranks=tuple(ranks)))
        shown = {labels: v for (name, labels), v in values(run).items() if name == "dsrun_rank_silent_seconds"}
    assert len(shown) == MOST_RANKS
    assert shown["999,n"] == 90.0


def test_runs_have_their_names_unless_two_share_one(tmp_path: Path) -> None:
    for name in ("a/one", "b/one", "b/two"):
        write_run(tmp_path / name, {"kind": "start"})
    assert set(find_runs([tmp_path])) == {"two", str(tmp_path / "a/one"), str(tmp_path / "b/one")}
    assert list(find_runs([tmp_path / "b/two"])) == ["two"]
    with pytest.raises(UsageError, match="is not a folder"):
        find_runs([tmp_path / "none"])


def test_long_ended_runs_are_left_out(tmp_path: Path) -> None:
    write_run(tmp_path / "old", {"kind": "start"}, {"kind": "end", "exit_code": 0})
    soon, later = (RunCollector([tmp_path], now=lambda at=at: at) for at in (AT + 60, AT + 2 * 86400))
    assert list(soon.collect())
    assert not list(later.collect())


def test_foreign_text_cannot_break_the_format(tmp_path: Path) -> None:
    run = write_run(tmp_path, {"kind": "start"}, {"kind": "failure", "cause": 'x"} 1\ndsrun_step{run="'})
    made = families({'a"\nb': read_history(run)}, AT)

    class Recorded:
        def collect(self) -> Any:
            return made

    registry = CollectorRegistry()
    registry.register(Recorded())
    read = list(text_string_to_metric_families(generate_latest(registry).decode()))
    assert {sample.labels["run"] for family in read for sample in family.samples} == {'a"\nb'}
    causes = [sample.labels.get("cause") for family in read for sample in family.samples]
    assert 'x"} 1\ndsrun_step{run="' in causes


def test_folder_that_goes_away_is_no_error(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", {"kind": "start"})
    collector = RunCollector([run])
    (run / "events.jsonl").unlink()
    (run / "metrics.jsonl").unlink()
    run.rmdir()
    assert not list(collector.collect())
