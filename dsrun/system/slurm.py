"""Querying SLURM's own programs (scontrol, squeue, sacct, sacctmgr, sbatch), and scontrol's records as mappings."""

import grp
import os
import pwd
import re
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from subprocess import CompletedProcess
from threading import Timer

from dsrun.datafiles import toml_beside
from dsrun.errors import MissingError, ToolError
from dsrun.system.process.proc import capture
from dsrun.system.terminal.stderr import print_note

# Clients try again and again for 9 to 18 s before they give a dead controller up (measured on 22.05).
_TIMEOUT_S = 60
SILENCE_S = 3
"""Seconds without an answer after which a line says so, once for each of SLURM's programs."""
_TABLE = toml_beside(__file__)
_SAID: dict[str, list[str]] = _TABLE["said"]
# Users set SLURM_TIME_FORMAT for their own eyes.
_TIME_FORMAT = {"SLURM_TIME_FORMAT": "standard"}
# ASCII's unit and record separators: a job's name may hold blanks, bars, commas and line breaks.
_FIELD, _RECORD = "\x1f", "\x1e"
_TOLD: set[str] = set()


class NoAnswerError(ToolError):
    """The controller or the accounting daemon does not answer now; it may be back soon."""


def run_tool(argv: Sequence[str]) -> str:
    """What one of SLURM's programs prints.

    Raises MissingError where there is no SLURM or no cluster, NoAnswerError when the controller cannot be reached,
    and ToolError with the program's last line when it fails."""
    return str(run_tool_unless(argv, ()))


def run_tool_unless(argv: Sequence[str], absent: Sequence[str]) -> str | None:
    """As `run_tool`; None when the program fails with one of the messages `absent`, which are in lower case."""
    answer = query_tool(argv)
    if answer.returncode == 0:
        return answer.stdout
    if any(message in answer.stderr.lower() for message in absent):
        return None
    raise ToolError(f"{argv[0]} failed: {error_line(answer)}")


def query_tool(argv: Sequence[str], *, feed: Path | None = None) -> CompletedProcess[str]:
    """As `run_tool`, but a program that failed for another reason than no SLURM or no answer is not an error."""
    config = os.environ.get("SLURM_CONF")
    if config and not Path(config).exists():  # every program would wait a minute for it
        raise ToolError(f"SLURM_CONF names {config}, which does not exist", fix="unset SLURM_CONF, or correct it")
    slow = Timer(SILENCE_S, _tell_once, (argv[0],))
    slow.daemon = True
    slow.start()
    try:
        answer = capture(argv, seconds=_TIMEOUT_S, changes=_TIME_FORMAT, feed=feed)
    except MissingError:
        raise _no_slurm(argv[0]) from None
    except ToolError as error:
        raise NoAnswerError(error.message, fix="is the controller up? `scontrol ping`") from error
    finally:
        slow.cancel()
    if answer.returncode != 0 and any(message in answer.stderr for message in _SAID["without_cluster"]):
        raise _no_slurm(argv[0])
    if answer.returncode != 0 and any(message in answer.stderr for message in _SAID["unreachable"]):
        raise NoAnswerError(f"{argv[0]}: {error_line(answer)}", fix="is the controller up? `scontrol ping`")
    return answer


def _tell_once(program: str) -> None:
    if program not in _TOLD:
        _TOLD.add(program)
        print_note(f"SLURM has not answered {program} for {SILENCE_S} s; waiting up to {_TIMEOUT_S} s")


def _no_slurm(program: str) -> MissingError:
    what = f"there is no SLURM cluster here ({program} finds none)"
    return MissingError(what, fix="call it on a login node of the cluster")


def error_line(answer: CompletedProcess[str]) -> str:
    """The last line that a program said, without its own name in front, and without the advice to read its help."""
    lines = (answer.stderr.strip() or answer.stdout.strip() or "no reason given").splitlines()
    reasons = [line for line in lines if line.strip() and not line.startswith('Try "')] or lines
    return reasons[-1].removeprefix("sbatch: ").removeprefix("error: ").strip()


def show(kind: str, *options: str) -> str:
    """Every `kind` that scontrol knows, one a line of key=value words."""
    return run_tool(["scontrol", "--oneliner", *options, "show", kind])


def job(job_id: str) -> str | None:
    """The job, or every task of an array, as `scontrol show job` prints it; None when the controller has no such job.

    Not --oneliner: on lines of its own no value that the user chose can pass for another key."""
    return run_tool_unless(["scontrol", "show", "job", job_id], _SAID["unknown_job"])


def batch_script(job_id: str) -> str | None:
    """The script of a job that the controller still knows; None for others' jobs and for forgotten ones.

    scontrol 22.05 ends with exit code 0 also when it prints nothing."""
    answer = query_tool(["scontrol", "write", "batch_script", job_id, "-"])
    return answer.stdout if answer.returncode == 0 and answer.stdout.startswith("#!") else None


def queue(letters: Sequence[str], *, job_id: str | None = None) -> list[tuple[str, ...]]:
    """This user's jobs, also finished ones that the controller remembers: the fields `letters` of squeue --format.

    One row per job and per array task that has started. [] for a `job_id` it does not know."""
    text = _FIELD.join(f"%{letter}" for letter in letters) + _RECORD
    argv = ["squeue", "--noheader", "--states=all", f"--format={text}"]
    answer = run_tool_unless([*argv, f"--jobs={job_id}" if job_id else "--me"], _SAID["unknown_job"])
    return [] if answer is None else _rows(answer.split(f"{_RECORD}\n"), len(letters))


def history(fields: Sequence[str], *, hours: float = 24, job_id: str | None = None) -> list[tuple[str, ...]] | None:
    """This user's jobs of the last `hours` as the accounting has them; None where there is no accounting.

    With `job_id` that job only, however old. One row per job, without its steps."""
    argv = ["sacct", "--allocations", "--noheader", "--parsable2", f"--delimiter={_FIELD}"]
    argv.append(f"--format={','.join(fields)}")
    # Seconds, for sacct takes whole units only.
    argv += [f"--jobs={job_id}"] if job_id else [f"--user={user()}", f"--starttime=now-{hours * 3600:.0f}seconds"]
    text = run_tool_unless(argv, _SAID["without_accounting"])
    return None if text is None else _rows(_whole_records(text, len(fields)), len(fields))


def _whole_records(text: str, width: int) -> list[str]:
    """The records of sacct, which ends each with a line break and escapes none of those within a field."""
    found: list[str] = []
    for line in text.split("\n"):
        if found and found[-1].count(_FIELD) < width - 1:
            found[-1] += f"\n{line}"
        elif _FIELD in line:
            found.append(line)
    return found


def _rows(records: Sequence[str], width: int) -> list[tuple[str, ...]]:
    """Records with the right number of fields; "CLUSTER: name" is none."""
    rows = [tuple(record.split(_FIELD)) for record in records]
    return [row for row in rows if len(row) == width]


def associations(cluster: str) -> str:
    """Default account, account, partition, QOS list and default QOS of each of this user's associations, with bars."""
    fields = "DefaultAccount,Account,Partition,QOS,DefaultQOS"
    return _accounting("user", "withassoc", "where", f"name={user()}", f"cluster={cluster}", fields=fields)


def qualities() -> str:
    """Name, longest time and TRES limit per job of every QOS, one a line with bars."""
    return _accounting("qos", fields="Name,MaxWall,MaxTRES")


def _accounting(kind: str, *arguments: str, fields: str) -> str:
    return run_tool(
        ["sacctmgr", "--noheader", "--parsable2", "--readonly", "show", kind, *arguments, f"format={fields}"]
    )


def sbatch(options: Sequence[str], script: Path) -> CompletedProcess[str]:
    """`sbatch OPTIONS` with the file `script` as its stdin: a job's Command must not name a file that will be gone."""
    return query_tool(["sbatch", *options], feed=script)


def user() -> str:
    """This process's user by name, or by number where the number has none."""
    try:
        return pwd.getpwuid(os.getuid()).pw_name
    except KeyError:
        return str(os.getuid())


def groups() -> tuple[str, ...]:
    """This process's groups by name; groups without a name are left out."""
    found = []
    for number in {os.getgid(), *os.getgroups()}:
        with suppress(KeyError):
            found.append(grp.getgrgid(number).gr_name)
    return tuple(sorted(found))


_KEY = re.compile(r"(?:^|(?<=\s))([A-Za-z][A-Za-z0-9_:./\\]*)=")
_NOTHING = frozenset({"", "(null)", "N/A", "n/a", "None", "NONE"})
_JOB = re.compile(r"(?:JobId=(?P<id>\d+) )(?:ArrayJobId=(?P<array>\d+) ArrayTaskId=(?P<task>\S+) )?")


def pairs(line: str, free: frozenset[str] = frozenset()) -> dict[str, str]:
    """The words key=value of one line; a value goes on to the next key, for "OS=Linux 6.1" holds a blank.

    Of two values the first counts. The values of the keys `free`, which people write, are ended by one of these only.
    """
    found: dict[str, str] = {}
    keys: list[re.Match[str]] = []
    for key in _KEY.finditer(line):
        if not (keys and keys[-1][1] in free and key[1] not in free):
            keys.append(key)
    ends = [key.start() for key in keys[1:]] + [len(line)]
    for key, end in zip(keys, ends, strict=False):
        found.setdefault(key[1], line[key.end() : end].strip())
    return found


def oneliners(text: str, free: frozenset[str] = frozenset()) -> Iterator[dict[str, str]]:
    """The records of `scontrol --oneliner`, one a line; "No licenses configured" is none."""
    return (found for line in text.splitlines() if (found := pairs(line, free)))


def settings(text: str) -> dict[str, str]:
    """`scontrol show config`: lines of `key = value`."""
    found = (line.partition("=") for line in text.splitlines())
    return {key.strip(): value.strip() for key, equals, value in found if equals}


def value(record: dict[str, str], key: str) -> str | None:
    """What stands under `key`; None for no such key and for SLURM's words for nothing."""
    text = record.get(key, "")
    return None if text in _NOTHING else text


def names(record: dict[str, str], key: str) -> tuple[str, ...]:
    """A list with commas; () for nothing and for ALL."""
    text = value(record, key)
    return () if text is None or text == "ALL" else tuple(word for word in text.split(",") if word)


def jobs(text: str) -> Iterator[dict[str, str]]:
    """The records of `scontrol show job`, one key=value or several on each line.

    The first line ends with the job's name, and the lines of paths, command and comment hold one key each: these
    values go on to the end of their line, whatever is in them."""
    for block in re.split(r"(?m)^(?=JobId=\d)", text):
        lines = block.splitlines()
        head = _JOB.match(lines[0]) if lines else None
        if not head:
            continue
        found = {"JobId": head["id"], "JobName": lines[0].partition("JobName=")[2]}
        if head["array"]:
            found |= {"ArrayJobId": head["array"], "ArrayTaskId": head["task"]}
        for line in lines[1:]:
            key, equals, rest = line.strip().partition("=")
            if key in _TABLE["whole_lines"]:
                found.setdefault(key, rest)
            elif equals:
                found = {**pairs(line), **found}
        yield found
