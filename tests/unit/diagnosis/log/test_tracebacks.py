"""Exceptions are found by where they stand: behind every prefix, under every name, and where a log ends early."""

import re

import pytest

from dsrun.diagnosis.classify import diagnoses, scan_log
from dsrun.diagnosis.log.records import end_of_traceback

FRAMES = '  File "a.py", line 3, in <module>\n    call()\n'
STAMP = "2026-11-21T04:48:{:02}.123456789Z "


def unknown(log: str) -> str | None:
    """The line of the failure without a rule that `log` shows, None if it is healthy."""
    found = diagnoses(scan_log(log.encode(), "log"))
    assert not found or found[0].cause.code == "unknown" or found[0].cause.general
    return found[0].evidence if found else None


def traceback(exception: str, *prefixes: str) -> str:
    lines = f"Traceback (most recent call last):\n{FRAMES}{exception}".splitlines()
    return "".join(f"{prefixes[min(place, len(prefixes) - 1)]}{line}\n" for place, line in enumerate(lines))


@pytest.mark.parametrize(
    "name",
    ["ValueError", "subprocess.TimeoutExpired", "torch._dynamo.exc.Unsupported", "BrokenProcessPool",
     "ray.exceptions.RayTaskError(ValueError)", "socket.gaierror", "_queue.Empty", "SystemExit", "zed.Oops"],
)  # fmt: skip
def test_exception_of_any_name_ends_traceback(name: str) -> None:
    assert unknown(traceback(f"{name}: bad", "")) == f"{name}: bad"


@pytest.mark.parametrize(
    "prefixes",
    [
        ("3: ",),
        ("[rank3]: ",),
        ("[default3]:",),
        ("[1,3]<stderr>:",),
        ("(RayTrainWorker pid=123, ip=10.0.0.1) ",),
        ("trainer-0  | ",),
        ("worker-0: ",),
        ("    ",),
        ("\x1b[36mtrain\x1b[0m: ",),
        tuple(STAMP.format(second) for second in range(4)),
        ("2026-11-21 10:00:00,123 - train - ERROR - failed: ", ""),
        ("ERROR:root:", ""),
    ],
)
def test_exception_found_behind_prefix(prefixes: tuple[str, ...]) -> None:
    """Launchers, containers and loggers write something before each line, or before the first one."""
    evidence = unknown("step 1\n" + traceback("zed.Oops: bad", *prefixes) + "more\n")
    assert evidence is not None
    assert evidence.endswith("zed.Oops: bad")


@pytest.mark.parametrize(
    "line",
    ["3: ValueError: bad", "2026-11-21 10:00:00,123 - train - ERROR - ValueError: bad", "[rank1]: KeyError: 'x'",
     "10:00:00 | ERROR    | ValueError: bad", "ERROR:root:ValueError: bad"],
)  # fmt: skip
def test_exception_without_traceback_found_behind_prefix(line: str) -> None:
    assert unknown(f"step 1\n{line}\n") == line


def test_exception_of_a_warning_is_no_failure() -> None:
    assert unknown("2026-11-21 10:00:00,123 - train - WARNING - ValueError: bad, ignored\n") is None


def test_interleaved_tracebacks_keep_their_exceptions() -> None:
    """The root cause of eight ranks' mixed tracebacks is found far from the end of the log."""
    ranks = [
        traceback("zed.Oops: bad" if rank == 3 else "RuntimeError: Connection closed by peer", f"[rank{rank}]: ")
        for rank in range(8)
    ]
    mixed = "".join("".join(lines) for lines in zip(*(text.splitlines(True) for text in ranks), strict=True))
    found = diagnoses(scan_log((mixed + "noise\n" * 1000).encode(), "log"))
    assert (found[0].evidence, found[0].rank) == ("[rank3]: zed.Oops: bad", 3)


def test_traceback_cut_off_by_another_one_is_no_second_failure() -> None:
    log = f"Traceback (most recent call last):\n{FRAMES}{traceback('zed.Oops: bad', '')}more\n"
    assert [(hit.line, hit.text) for hit in scan_log(log.encode(), "log").scan.hits] == [(7, "zed.Oops: bad")]


def test_traceback_far_above_an_exception_is_not_its_own() -> None:
    """In a log of nothing but cut tracebacks each is looked at for a bounded way."""
    log = f"Traceback (most recent call last):\n{FRAMES}" * 100 + traceback("zed.Oops: bad", "")
    ends = {end_of_traceback(log.encode(), at.start()) for at in re.finditer("Traceback", log)}
    assert len([end for end in ends if end.kind == "exception"]) < 20


def test_log_that_ends_inside_traceback_is_no_healthy_one() -> None:
    assert unknown(f"step 1\nTraceback (most recent call last):\n{FRAMES}") == "call()"


def test_traceback_in_one_line_of_json() -> None:
    """A logger of JSON writes line breaks as \\n."""
    inner = f"Traceback (most recent call last):\n{FRAMES}zed.Oops: bad\n".replace('"', '\\"').replace("\n", "\\n")
    assert unknown(f'{{"level": "error", "exc": "{inner}"}}\n') == "zed.Oops: bad"


@pytest.mark.parametrize("prefix", ["", "[rank3]: ", "3: "])
def test_exception_is_shown_with_the_message_below_it(prefix: str) -> None:
    """Some messages begin with a line break."""
    log = traceback("RuntimeError: \n\nExpected two\nnot three", prefix)
    assert unknown(log) == f"{prefix}RuntimeError: Expected two"


def test_boxed_traceback_has_its_exception_below() -> None:
    box = "╭─── Traceback (most recent call last) ───╮\n│ /home/u/train.py:12 in main │\n╰─────╯\nzed.Oops: bad\n"
    assert unknown(box) == "zed.Oops: bad"


def test_last_exception_of_a_chain_counts() -> None:
    """What followed from another exception says what ended the program."""
    link = "\nDuring handling of the above exception, another exception occurred:\n\n"
    assert unknown(traceback("KeyError: 'x'", "") + link + traceback("zed.Oops: bad", "")) == "zed.Oops: bad"


def test_exception_that_python_ignored_is_healthy() -> None:
    log = "Exception ignored in: <function A.__del__ at 0x7f>\n" + traceback("TypeError: not callable", "")
    assert unknown(log) is None


def test_retried_exception_is_over_when_training_goes_on() -> None:
    """A caught exception counts until a step shows that the program went on."""
    log = traceback("ConnectionError: bad", "") + "retrying in 3 s (1/5)\n"
    assert unknown(log) == "ConnectionError: bad"
    assert unknown(log + "{'loss': 2.0, 'grad_norm': 1.0}\n") is None


@pytest.mark.parametrize(
    "line",
    [
        "srun: error: node01: task 4: Exited with exit code 1",
        "[2026-11-21 10:00:00,123] [ERROR] [launch.py:322:sigkill_handler] ['python'] exits with return code = 1",
        "slurmstepd: error: execve(): train.py: No such file or directory",
        "/var/spool/slurmd/job123/slurm_script: line 12: my-trainer: command not found",
        "python: can't open file '/x/train.py': [Errno 2] No such file or directory",
        "Aborted (core dumped)",
        "Fatal Python error: Aborted",
        "Floating point exception (core dumped)",
        "make: *** [Makefile:3: train] Error 2",
        "  exitcode  : 1 (pid: 29890)",
        "MPI_ABORT was invoked on rank 3 in communicator MPI_COMM_WORLD",
    ],
)
def test_end_with_failure_is_never_healthy(line: str) -> None:
    """A line that tells of a failed process, and nothing else, is shown as such."""
    assert unknown(f"step 1\n{line}\n") == line.strip()


@pytest.mark.parametrize("line", ["trainer-0 exited with code 0", "exits with return code = 0", "exitcode  : 0"])
def test_exit_code_0_is_healthy(line: str) -> None:
    assert unknown(f"step 1\n{line}\n") is None
