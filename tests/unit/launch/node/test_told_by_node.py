"""What one machine tells of a run: the events that come in, how it ended, and what its messages say."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from dsrun.errors import EXIT_FINDINGS, EXIT_INTERRUPTED, EXIT_RESUME, EXIT_TOOL_FAILED, MissingError, UsageError
from dsrun.launch.context import LocalLauncher, LocalWorkers, RunOutcome
from dsrun.launch.node.run_node import report
from dsrun.launch.node.sender import _early_end, printed_events
from dsrun.launch.node.work import NodeProgram
from dsrun.launch.signals import StartupSignals
from dsrun.runs.folder import RunFolder
from dsrun.runs.heartbeat import StopRequest
from dsrun.system import variables
from dsrun.system.terminal import log_format
from tests.run_folders import event


@pytest.mark.parametrize(("node", "chosen", "printed"), [(0, "json", ["training"]), (1, "json", []), (0, "text", [])])
def test_node_0_prints_the_events_that_come_in(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, node: int, chosen: str, printed: list[str]
) -> None:
    """None of earlier starts, which are in the folder already."""
    lines: list[bytes] = []
    monkeypatch.setenv(variables.LOG_FORMAT, chosen)
    monkeypatch.setattr(log_format, "labels", {})
    monkeypatch.setattr(log_format, "write_stderr", lines.append)
    folder = RunFolder.create(tmp_path / "run")
    folder.events.write_text(json.dumps(event("start")) + "\n")
    work = NodeProgram(
        topology=LocalWorkers(1, "cpu", 1), output=str(folder.path), debug=False, dry_run=False, force=False,
        require=pytest.fail, job=pytest.fail,
    )  # fmt: skip
    with printed_events(work, LocalLauncher(how="here", nodes=2, node=node)), folder.events.open("a") as file:
        file.write(json.dumps(event("training", 1, step=0)) + "\n")
    assert [json.loads(line)["event.action"] for line in lines] == printed


@pytest.mark.parametrize(("code", "named"), [(EXIT_TOOL_FAILED, True), (EXIT_FINDINGS, False), (EXIT_RESUME, False)])
def test_log_is_named_where_a_tool_has_failed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], code: int, named: bool
) -> None:
    assert report(RunOutcome(code, "the reason", "the advice", "the log"), RunFolder(tmp_path)) == code
    assert ("full log: the log" in capsys.readouterr().err) is named


@pytest.mark.parametrize("signalled", [False, True])
def test_early_end_has_the_code_of_its_error(signalled: bool) -> None:
    """A signal before the start is what ended anything but an error of dsrun's own."""
    signals = StartupSignals()
    signals.request = StopRequest.now("SIGTERM") if signalled else None
    for error in (UsageError("no"), MissingError("no")):
        assert _early_end(error, signals).exit_code == error.exit_code
    assert _early_end(KeyboardInterrupt(), signals).exit_code == EXIT_INTERRUPTED
    assert _early_end(RuntimeError("no"), signals).exit_code == (EXIT_RESUME if signalled else EXIT_TOOL_FAILED)
