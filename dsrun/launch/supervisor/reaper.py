"""`python -I -S reaper.py FD RUN_ID SCRATCH`: waits until the supervisor is gone, then ends what it left behind.

A process of its own, because the supervisor may be killed outright, and the kernel's own tie (PR_SET_PDEATHSIG) does
not reach what a rank forks. It waits for the end of a pipe that only the supervisor holds. The standard library only,
and nothing of dsrun: it starts in milliseconds and must not fail where the environment is broken."""

import os
import shutil
import signal
import sys
import time
from collections.abc import Iterable
from contextlib import AbstractContextManager, suppress
from pathlib import Path

# Inherited by every descendant. dsrun.system.variables.RUN_ID, which cannot be imported here.
VARIABLE = b"DSRUN_RUN_ID="
_PROC = Path("/proc")
# The 52nd value of stat in proc(5), counted from the third, which follows the name.
_EXIT_CODE = 49
_POLL_S = 0.02
# A member that forks between the look and the shot is met in a later round.
_QUIET_ROUNDS = 3
# Longer than `end` takes by default.
_END_S = 20.0


def members(run_id: str, *, spare: Iterable[int] = ()) -> set[int]:
    """Process ids of the living that carry `run_id`, and of their descendants, but for this process and `spare`."""
    parents: dict[int, int] = {}
    family: set[int] = set()
    for pid in (int(entry.name) for entry in _PROC.iterdir() if entry.name.isdigit()):
        state, parent = state_and_parent(pid)
        if not _is_alive(pid, state):
            continue
        parents[pid] = parent
        if _carries(pid, run_id.encode()):
            family.add(pid)
    kept_processes = {os.getpid(), *spare}
    grown = True
    while grown:
        young = {pid for pid, parent in parents.items() if parent in family - kept_processes and pid not in family}
        family |= young
        grown = bool(young)
    return family - kept_processes


def stat_fields(pid: int) -> list[bytes]:
    """The values of stat in proc(5) from the third on, the state; none where there is no such process."""
    with suppress(OSError):
        # The name in parentheses may hold anything, parentheses and blanks included.
        return (_PROC / str(pid) / "stat").read_bytes().rpartition(b")")[2].split()
    return []


def state_and_parent(pid: int) -> tuple[str, int]:
    """The state letter of proc(5) and the parent of `pid`; "" and 0 where there is no such process."""
    fields = stat_fields(pid)
    return (fields[0].decode(), int(fields[1])) if fields else ("", 0)


def exit_code(pid: int) -> int | None:
    """How `pid` ended (negative: a signal); None where that is unknown, as after its parent has waited for it.

    The kernel shows it to the same user; others would read 0."""
    fields = stat_fields(pid)
    return os.waitstatus_to_exitcode(int(fields[_EXIT_CODE])) if fields[:1] == [b"Z"] else None


def threads(pid: int) -> int:
    """How many threads of `pid` are left; 0 where there is no such process."""
    try:
        return sum(1 for _ in (_PROC / str(pid) / "task").iterdir())
    except OSError:
        return 0


def lives(pid: int) -> bool:
    """Whether a thread of `pid` is left. The main thread of a zombie has ended, but its others may go on."""
    return _is_alive(pid, state_and_parent(pid)[0])


def _is_alive(pid: int, state: str) -> bool:
    return threads(pid) > 1 if state == "Z" else state not in ("", "X")


def kill(pid: int, signum: int) -> None:
    """Send a signal to a process that may have ended."""
    with suppress(ProcessLookupError, PermissionError):
        os.kill(pid, signum)


def end(run_id: str, *, spare: Iterable[int] = (), within_s: float = 10.0) -> bool:
    """Kill the process tree until none of it is left; False where some of it still is after `within_s` seconds."""
    kept_processes = set(spare)
    deadline = time.monotonic() + within_s
    # Who gives much memory back shows no environment any more, but holds GPUs, locks and files until it is gone.
    dying: set[int] = set()
    quiet = 0
    while quiet < _QUIET_ROUNDS:
        found = members(run_id, spare=kept_processes)
        for pid in found:
            kill(pid, signal.SIGKILL)
        dying = {pid for pid in dying | found if lives(pid)}
        quiet = 0 if found or dying else quiet + 1
        if (found or dying) and time.monotonic() > deadline:
            return False
        time.sleep(_POLL_S)
    return True


def _carries(pid: int, run_id: bytes) -> bool:
    environ = _environ(pid)
    _, found, rest = (b"\0" + environ).partition(b"\0" + VARIABLE)
    return bool(found) and run_id in rest.partition(b"\0")[0].split(b"/")


def _environ(pid: int) -> bytes:
    """What `pid` was started with, NAME=VALUE between zero bytes; nothing where it is gone, or another user's."""
    process = _PROC / str(pid)
    with suppress(PermissionError, FileNotFoundError):
        try:
            return (process / "environ").read_bytes()
        except ProcessLookupError:  # the main thread has ended: the others still know
            for task in (process / "task").iterdir():
                with suppress(OSError):
                    return (task / "environ").read_bytes()
    return b""


class Reaper(AbstractContextManager["Reaper"]):
    """The reaper of this supervisor, started again if it is killed; it ends the run when this process is gone."""

    def __init__(self, run_id: str, scratch: Path) -> None:
        self._arguments = [run_id, str(scratch)]
        self._begin()

    def _begin(self) -> None:
        import subprocess  # not in the process itself, which starts in milliseconds

        read, self._write = os.pipe()
        self._process = subprocess.Popen(
            [sys.executable, "-I", "-S", __file__, str(read), *self._arguments],
            pass_fds=(read,),
            # Out of the process group and the session that a terminal signals as a whole.
            start_new_session=True,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(read)

    def keep(self) -> None:
        """Start another one where it was killed."""
        if self._process.poll() is not None:
            os.close(self._write)
            self._begin()

    def __exit__(self, *_: object) -> None:
        from subprocess import TimeoutExpired

        os.close(self._write)
        with suppress(TimeoutExpired):  # it goes on without this process
            self._process.wait(_END_S)


def main(arguments: list[str]) -> int:
    """Wait, end the family, remove the scratch folder."""
    for signum in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2):
        # What ends the others with a signal to everybody must not end the one who tidies up after them.
        signal.signal(signum, signal.SIG_IGN)
    fd, run_id, scratch = int(arguments[0]), arguments[1], arguments[2]
    while os.read(fd, 4096):
        pass
    gone = end(run_id)
    shutil.rmtree(scratch, ignore_errors=True)
    return 0 if gone else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
