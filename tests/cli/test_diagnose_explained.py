"""`dsrun diagnose` with --explain, -o, and what comes through a pipe."""

import json
import os
import pty
import subprocess
import sys
from pathlib import Path

import pytest

import dsrun.cli.diagnose as command
from dsrun.diagnosis.candidates import LogLine
from dsrun.diagnosis.diagnose import RunVerdict
from dsrun.diagnosis.rules import FailureCause
from tests.cli.conftest import Dsrun
from tests.run_folders import event, write_run

OOM = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB\n"
LOST = "RuntimeError: Connection closed by peer [127.0.0.1]:54997\n"


@pytest.fixture
def two_logs(here: Path) -> list[str]:
    (here / "a.log").write_text(LOST)
    (here / "b.log").write_text("start\n" + OOM)
    return ["a.log", "b.log"]


def explained(output: str) -> list[tuple[str, str]]:
    """(line's place, its reason) of each candidate, in the order in which they are printed."""
    lines = output.splitlines()
    numbered = [number for number, line in enumerate(lines) if line.split(" ", 1)[0].isdigit()]
    return [(lines[each].split()[1].rstrip(":"), lines[each + 1].strip()) for each in numbered]


def test_explain_shows_candidates_of_several_logs(dsrun: Dsrun, two_logs: list[str]) -> None:
    done = dsrun("diagnose", "--explain", *two_logs)
    assert done.returncode == 3
    found = explained(done.stdout)
    assert [place for place, _ in found] == ["b.log:2", "a.log:1", "a.log:1", "b.log:2"]
    assert [why.partition(":")[0] for _, why in found] == ["cuda_oom", "nccl_network", "unknown", "unknown"]
    assert found[0][1].rpartition("; ")[2].startswith("first: ")
    assert dsrun("diagnose", *two_logs).stdout == done.stdout[: done.stdout.index("\n\n") + 1]


def test_explain_of_run_folder_says_that_the_run_recorded_it(dsrun: Dsrun, here: Path) -> None:
    """What the supervisor saw comes before the lines of the logs."""
    run = write_run(here / "run", events=[event("start"), event("failure", cause="rank_hung", rank=1, message="hung")])
    (run / "logs").mkdir(exist_ok=True)
    (run / "logs" / "rank-0.attempt-0.log").write_text(LOST)
    done = dsrun("diagnose", "--explain", "run", "-o", "page.html")
    assert "cause    rank_hung: " in done.stdout
    assert done.stdout.partition("\n\n")[2].splitlines()[0].replace("'", "&#39;") in (here / "page.html").read_text()
    assert str(Path("run") / "events.jsonl") in done.stdout.partition("\n\n")[2].splitlines()[0]
    assert [place for place, _ in explained(done.stdout)][:1] == ["1"]


def test_explain_of_log_without_candidates(dsrun: Dsrun, here: Path) -> None:
    (here / "a.log").write_text("all is well\n")
    done = dsrun("diagnose", "--explain", "a.log")
    assert (done.returncode, explained(done.stdout)) == (0, [])
    assert len(done.stdout.splitlines()) == 5


def test_explain_bounds_what_it_prints(dsrun: Dsrun, here: Path) -> None:
    """JSON has the rest."""
    (here / "a.log").write_text("OSError: [Errno 28] No space left on device\nx\n" * 60)
    done = dsrun("diagnose", "--explain", "a.log")
    assert len(explained(done.stdout)) == command.EXPLAINED
    assert "--format json" in done.stdout.splitlines()[-1]


def test_json_has_candidates_only_with_explain(dsrun: Dsrun, two_logs: list[str]) -> None:
    plain = json.loads(dsrun("diagnose", "--format", "json", *two_logs).stdout)
    assert "candidates" not in plain
    assert plain["excerpt"] == []
    found = json.loads(dsrun("diagnose", "--format", "json", "--explain", *two_logs).stdout)["candidates"]
    assert found[0] == {
        "log": "b.log", "line": 2, "evidence": OOM.strip(), "cause": "cuda_oom", "weight": "root", "standing": "first",
        "rank": None, "time": None, "attempt": 0, "steps": 0, "end": False,
    }  # fmt: skip


def test_page_is_written_beside_the_verdict(dsrun: Dsrun, two_logs: list[str], here: Path) -> None:
    done = dsrun("diagnose", *two_logs, "-o", "page.html")
    assert (done.returncode, done.stderr) == (3, "")
    assert done.stdout == dsrun("diagnose", *two_logs).stdout
    page = (here / "page.html").read_text(encoding="utf-8")
    assert "cuda_oom" in page
    assert "b.log" in page
    again = dsrun("diagnose", *two_logs, "-o", "page.html")
    assert (again.returncode, again.stdout, again.stderr.count("\n")) == (2, "", 1)
    assert dsrun("diagnose", *two_logs, "-o", "page.html", "--force").returncode == 3


@pytest.mark.parametrize("place", [".", "gone/page.html"])
def test_page_that_cannot_be_written_is_one_line(dsrun: Dsrun, two_logs: list[str], place: str) -> None:
    done = dsrun("diagnose", *two_logs, "-o", place)
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)
    assert place.partition("/")[0] in done.stderr


def piped(environ: dict[str, str], *args: str, **given: object) -> "subprocess.CompletedProcess[str]":
    """`dsrun diagnose` with what it is `given` as standard input."""
    argv = [sys.executable, "-m", "dsrun", "diagnose", *args]
    return subprocess.run(argv, text=True, capture_output=True, env=environ, check=False, **given)  # type: ignore[call-overload, no-any-return]


def test_standard_input_named_twice_is_read_once(environ: dict[str, str], here: Path) -> None:
    done = piped(environ, "-", "-", "-o", "page.html", input=OOM, cwd=here)
    assert (done.returncode, done.stderr) == (3, "")
    assert "standard input:1" in done.stdout
    assert "standard input" in (here / "page.html").read_text()


def test_standard_input_that_is_closed_is_one_line(environ: dict[str, str], here: Path) -> None:
    done = piped(environ, "-", cwd=here, preexec_fn=lambda: os.close(0))
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)


@pytest.mark.parametrize("content", [b"", b"\x7fELF\x02\x01\x01\x00\x00"], ids=["empty", "binary"])
def test_standard_input_without_text_is_one_line(environ: dict[str, str], here: Path, content: bytes) -> None:
    (here / "input").write_bytes(content)
    with (here / "input").open("rb") as opened:
        done = piped(environ, "-", cwd=here, stdin=opened)
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)


def test_terminal_as_standard_input_is_told_to_wait(environ: dict[str, str], here: Path) -> None:
    """On stderr, so that nobody takes it for a program that hangs."""
    keyboard, terminal = pty.openpty()
    os.write(keyboard, OOM.encode() + b"\x04")
    done = piped(environ, "-", cwd=here, stdin=terminal)
    os.close(keyboard)
    os.close(terminal)
    assert done.returncode == 3
    assert done.stdout.startswith("cause    cuda_oom: ")
    assert done.stderr.startswith("note: ")
    assert "Ctrl-D" in done.stderr


def printed(verdict: RunVerdict, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> list[str]:
    """What is printed of a verdict over one log, and the exit code in front."""
    monkeypatch.setattr(command, "of_logs", lambda logs: verdict)
    monkeypatch.setattr(command, "members", lambda log, name: {name: log})
    code = command.diagnose(logs=("a.log",), form="text", explain=False, output=None, force=False)
    return [str(code), *capsys.readouterr().out.splitlines()]


CAUSE = FailureCause(
    code="no_end", then="restart", title="no end is shown", means="it stops", fix="look", level="warning"
)


def test_excerpt_is_printed_where_it_tells_more_than_the_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def lines(*excerpt: LogLine) -> list[str]:
        verdict = RunVerdict(
            cause=CAUSE, where="a.log:7", evidence="KeyError: 'x'", logs=("a.log",), lines=9, excerpt=excerpt
        )
        return printed(verdict, monkeypatch, capsys)

    decisive, before = LogLine("a.log", 7, "KeyError: 'x'"), LogLine("a.log", 3, "no column x")
    assert not [line for line in lines(decisive) if line.startswith("lines")]
    shown = lines(before, decisive)
    place = shown.index("lines    3: no column x")
    assert shown[place + 1] == "         7: KeyError: 'x'"
    assert shown[place - 1] == "line     KeyError: 'x'"


def test_log_without_an_end_is_no_failure(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """The cause that no line tells is printed with its meaning, and the lines that tell most."""
    verdict = RunVerdict(
        cause=CAUSE, means="it stops", fix="look", logs=("a.log",), lines=9, excerpt=(LogLine("a.log", 9, "the last"),)
    )
    assert printed(verdict, monkeypatch, capsys) == [
        "0",
        "cause    no_end: no end is shown",
        "lines    9: the last",
        "meaning  it stops",
        "fix      look",
    ]


@pytest.mark.parametrize(
    ("row", "code", "first"),
    [
        (" 1234  gpu  train  anna PD  0:00  2 (Resources)", 0, "state    slurm_waiting: "),
        ("1234  train  gpu  root  16  FAILED  1:0", 3, "cause    unknown: "),
        ("train-0   0/1     OOMKilled   0   5m", 3, "cause    host_oom_killed: "),
        ("train-0   1/1     Running   0   5m", 0, "none: "),
    ],
)
def test_table_of_a_scheduler_through_a_pipe(
    environ: dict[str, str], here: Path, row: str, code: int, first: str
) -> None:
    done = piped(environ, "-", input=f"{row}\n", cwd=here)
    assert (done.returncode, done.stderr) == (code, "")
    assert done.stdout.startswith(first)
