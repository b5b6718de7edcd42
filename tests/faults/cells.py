"""Which faults strike where, and what has to come of each."""

from __future__ import annotations

from dataclasses import dataclass, field

PHASES = (
    "import", "rendezvous", "tokenising", "loading", "resuming", "forward", "optimizer", "saving", "shards",
    "committing", "evaluating", "generating", "exporting",
)  # fmt: skip

RESUME = 75
RANK_KILLED, AGENT_KILLED, HUNG = "rank_killed", "agent_killed", "rank_hung"


@dataclass(frozen=True, kw_only=True)
class Cell:
    """One fault at one point of a run.

    `rank` is the one that is struck, None for whichever comes to the point first. `ends` lists the exit codes that
    the first command may have; `cause` is the code in events.jsonl, where one is due. A run that ended with another
    code than 0 is started again by the same command, as a user would, unless `again` is False. `relative` is how far
    figures may lie from the undisturbed run's: 0 is to the bit; a halved micro batch forms its sums in another order.
    """

    fault: str
    phase: str
    action: str
    rank: int | None = 1
    call: int = 1
    once: bool = True
    ends: tuple[int, ...] = (0,)
    cause: str | None = None
    again: bool = True
    relative: float = 0.0
    flags: tuple[str, ...] = field(default=())

    @property
    def name(self) -> str:
        return f"{self.fault} @ {self.phase}".replace(" ", "-").replace("-@-", "@")


# fault -> action, exit codes of the first command, cause
DEADLY = {
    "SIGKILL of a rank": ("KILL rank", (0,), RANK_KILLED),
    "SIGKILL of all ranks": ("KILL ranks", (0,), RANK_KILLED),
    "SIGKILL of the agent": ("KILL agent", (0,), AGENT_KILLED),
    "SIGKILL of the supervisor": ("KILL supervisor", (-9,), None),
    "SIGSTOP of a rank": ("STOP rank", (0,), HUNG),
}
POLITE = {
    "SIGTERM to a rank": "TERM rank",
    "SIGTERM to the agent": "TERM agent",
    "SIGTERM to the supervisor": "TERM supervisor",
    "SIGUSR1 to a rank": "USR1 rank",
    "SIGUSR1 to the agent": "USR1 agent",
    "SIGUSR1 to the supervisor": "USR1 supervisor",
}
# The how-manieth call of the point: late enough that a checkpoint lies behind, early enough that the run is not over
# before a wish to stop has come by way of the agent and the supervisor.
CALLS = {"forward": 3, "optimizer": 3, "saving": 2, "shards": 2, "committing": 2, "evaluating": 1}


def cells() -> list[Cell]:
    """All cells, each phase with every fault that can strike there."""
    return [*_signals(), *_errors()]


def _signals() -> list[Cell]:
    found = []
    for phase in PHASES:
        # Only the main rank writes the manifest; the rank that takes the lock first tokenises for all.
        rank = {"committing": 0, "tokenising": None}.get(phase, 1)
        common = {"phase": phase, "rank": rank, "call": CALLS.get(phase, 1)}
        for fault, (action, ends, cause) in DEADLY.items():
            flags = ("--hang-timeout", "10") if cause == HUNG else ()
            found.append(Cell(fault=fault, action=action, ends=ends, cause=cause, flags=flags, **common))
        for fault, action in POLITE.items():
            # At the very end a run may as well finish.
            ends = (0, RESUME) if phase in ("exporting", "generating", "evaluating") else (RESUME,)
            found.append(Cell(fault=fault, action=action, ends=ends, **common))
        found.append(Cell(fault="SIGTERM twice", action="double", ends=(143, RESUME, 0), **common))
    return found


def _errors() -> list[Cell]:
    saves = ("saving", "shards", "committing")
    # All ranks know of a manifest that could not be written, and save again after the next step.
    forgiven = ("EIO", "committing")
    writes = [
        Cell(
            fault=fault, phase=phase, action=f"error {name}", rank=0, call=2,
            **{"ends": (0,), "cause": None} if (name, phase) == forgiven else {"ends": (1,), "cause": cause},
        )
        for phase in saves
        for fault, name, cause in (
            ("no space left", "ENOSPC", "disk_full"),
            ("input/output error", "EIO", "disk_error"),
            ("read-only file system", "EROFS", "disk_error"),
        )
    ]  # fmt: skip
    return [
        *writes,
        Cell(fault="NaN loss", phase="forward", action="nan", call=6, ends=(1,), cause="nan_loss"),
        Cell(fault="infinite loss", phase="forward", action="inf", call=6, ends=(1,), cause="nan_loss"),
        Cell(fault="out of memory", phase="forward", action="oom", call=6, cause="host_oom_killed", relative=1e-5),
        Cell(fault="out of memory", phase="optimizer", action="oom", call=6, cause="host_oom_killed", relative=1e-5),
        Cell(
            fault="dead DataLoader worker", phase="forward", action="loader", call=3,
            cause="dataloader_worker_killed", flags=("--dataloader-num-workers", "1"),
        ),
        Cell(
            fault="deterministic crash", phase="forward", action="raise", call=6, once=False, ends=(1,),
            cause="deterministic_crash", again=False,
        ),
    ]  # fmt: skip
