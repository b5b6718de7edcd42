"""Leaving when asked to: a signal makes all ranks save one checkpoint after the same step, and end.

Off unless DSRUN_SAVE_ON names signals, as the SLURM template does: there a time limit or a preemption announces itself
by a signal, and the job goes back into the queue.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from dsrun.errors import UsageError

SIGNALS_VARIABLE = "DSRUN_SAVE_ON"
"""Signal names without SIG, separated by commas: USR1,TERM."""
FILE_VARIABLE = "DSRUN_STOP_FILE"
"""A file that whoever sends the signal makes first: a worker that was still starting finds it."""


class Stopping:
    """What this rank knows of a wish to stop. Ranks agree on it in the sum that they form before every step."""

    def __init__(self, signals: tuple[signal.Signals, ...], file: Path | None) -> None:
        self.signals = signals
        self.file = file
        self.in_training = False
        self._asked: str | None = None

    @property
    def is_on(self) -> bool:
        """Whether any signal asks for it; the same on all ranks, as their environment is."""
        return bool(self.signals)

    @property
    def asked(self) -> bool:
        """Whether this rank was told to stop."""
        return self._asked is not None

    def listen(self) -> None:
        """Take the signals from here on."""
        for each in self.signals:
            signal.signal(each, self._handle)

    def begin(self) -> None:
        """Training begins: from here on a signal waits for the end of a step."""
        self.in_training = True
        if self.is_on and self.file is not None and self.file.exists():
            self._asked = self._asked or self.file.name

    def end(self) -> None:
        """Training is over: there is nothing left that a checkpoint would save."""
        self.in_training = False

    def _handle(self, signum: int, frame: Any) -> None:
        self._asked = signal.Signals(signum).name
        if not self.in_training:
            # Nothing is lost that the next start would not do again. Not a failure: the run is only interrupted.
            raise SystemExit(0)


def stopping_from(environ: Mapping[str, str] = os.environ) -> Stopping:
    """What the environment asks for. Raises UsageError for a name that is no signal."""
    names = [f"SIG{name.strip()}" for name in environ.get(SIGNALS_VARIABLE, "").split(",") if name.strip()]
    for name in names:
        if name not in signal.Signals.__members__:
            raise UsageError(
                f"{SIGNALS_VARIABLE}: {name} is no signal", fix="name signals without SIG, such as USR1,TERM"
            )
    file = environ.get(FILE_VARIABLE)
    return Stopping(tuple(signal.Signals[name] for name in names), Path(file) if file else None)
