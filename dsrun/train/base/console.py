"""A worker's output. The user sees header, one progress bar, evaluation lines and summary, of rank 0 alone; what
libraries print goes into the rank's log.

On a terminal the bar is live; elsewhere (a file, a SLURM log) a plain line appears now and then. Every line also goes
into the run folder's console.log."""

import io
import logging
import os
import sys
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from functools import partial
from pathlib import Path
from typing import Any, Literal, TextIO

from rich.console import Console as RichConsole
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn
from rich.table import Column
from rich.text import Text

from dsrun.system.terminal.display import fitted, printable, terminal_width
from dsrun.system.terminal.log_format import LogLevel, ecs_line
from dsrun.system.terminal.status_line import status
from dsrun.system.terminal.stderr import is_json, writing
from dsrun.system.variables import cache_root

SECONDS_BETWEEN_PLAIN_LINES = 10.0

MARKS = {"learned": ("bold green", "⟦", "⟧"), "cut": ("dim strike", "⟨", "⟩"), "lost": ("red strike", "⟨✂", "⟩")}
"""How the parts of a sample stand out: in colour, and where there is none. `lost` is cut off, and would be learned."""

SHOWN_PADDING = 0.05
"""Share of a batch."""

SHOWN_LENGTH = 200
"""Characters: an article to be summarised would fill the screen, and scroll the scores away."""

ERROR_STYLE = "red"

# Columns of the progress bar.
_BAR = 10
LARGEST_LOG = 1 << 20
"""Bytes, from which on a command's log in the cache is begun anew."""

LOG_FORMAT = "%(asctime)s %(levelname)s %(name)s: %(message)s"


def duration(seconds: float) -> str:
    """Seconds as 1:02:03, or 2:03 below an hour."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


def number(value: Any) -> str:
    """A figure for people: 12,345 or 0.1234 or 3.0e-05."""
    if not isinstance(value, float):
        return f"{value:,}" if isinstance(value, int) else str(value)
    if value and (abs(value) < 1e-3):
        return f"{value:.1e}"
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"


Fit = Callable[[str, int | None], str]


class Internal(str):
    """A line on how training works inside: in console.log always, before the user with --debug only."""


class Console:
    """Prints on rank 0; `out` is None on every other rank, `width` where it is no terminal. `as_json`: each line as
    --log-format json wants it."""

    def __init__(self, out: TextIO | None, *, width: int | None = None, as_json: bool = False) -> None:
        self.width = None if as_json else width
        self.terminal = self.width is not None
        self._json = out if as_json else None
        self._rich = RichConsole(
            file=out, force_terminal=self.terminal, width=self.width or 120, highlight=False, soft_wrap=True
        )
        self._out = out
        self._transcript: TextIO | None = None
        self.debug = False
        self._noted: set[str] = set()

    def record_in(self, path: Path) -> None:
        if self._out is not None:
            self._transcript = path.open("a", encoding="utf-8", buffering=1)

    def print(self, text: str = "", *, style: str | None = None, action: str = "output", fit: Fit = fitted) -> None:
        """Print a text, of which `fit` makes what is shown on a terminal of some width."""
        if self._out is None:
            return
        shown = printable(text, keep="\t\n")
        if self.debug or not isinstance(text, Internal):
            if self._json:
                self.event(shown.removeprefix(f"{action}: "), action="error" if style == ERROR_STYLE else action)
            else:
                self._rich.print(escape(fit(shown, self.width)), style=style)
        self._record(shown)

    def event(self, text: str, *, action: str, fields: Mapping[str, Any] | None = None) -> None:
        """With --log-format json: write a line of it for each line of `text`; those with `fields` are metrics."""
        level: LogLevel = "error" if action == "error" else "info"
        for line in filter(str.strip, text.splitlines()):
            shown = " ".join(line.split())
            kind: Literal["event", "metric"] = "metric" if fields else "event"
            if self._json:
                self._json.write(ecs_line(shown, action=action, level=level, kind=kind, fields=fields))

    def _record(self, text: str) -> None:
        if self._transcript:
            self._transcript.write(text + "\n")

    def marked(self, parts: list[tuple[str, str]]) -> None:
        """Print an indented text whose parts stand out by MARKS: in colour where there is any, else in brackets."""
        if self._out is None:
            return
        shown = [(printable(text, keep="\t\n"), *MARKS.get(state, ("", "", ""))) for text, state in parts]
        plain = "  " + "".join(f"{left}{text}{right}" for text, _, left, right in shown).replace("\n", "\n  ")
        if self._json:
            self.event(plain, action="output")
        elif self.coloured and self.width:
            whole = Text.assemble(*((text, style) for text, style, _, _ in shown))
            for at, each in enumerate(whole.wrap(self._rich, self.width - 4)):
                self._rich.print(Text.assemble("    " if at else "  ", each))
        else:
            self._rich.print(escape(fitted(plain, self.width)))
        self._record(plain)

    def markup(self, text: str) -> None:
        """Print a text with rich's markup, in lines of words on a terminal."""
        self._rich.print(text, emoji=False, end="", soft_wrap=self.width is None)

    def status(self, what: str) -> AbstractContextManager[object]:
        """Say what is being done in here, beginning with `what`, where no supervisor says it."""
        if isinstance(self._out, _OwnTerminal):
            return status(what, fd=self._out.fileno(), print_line=self.print)
        return nullcontext()

    @property
    def as_json(self) -> bool:
        return self._json is not None

    @property
    def coloured(self) -> bool:
        return self.terminal and not os.environ.get("NO_COLOR")

    def notice(self, text: str) -> None:
        if text not in self._noted:
            self._noted.add(text)
            self.print(type(text)(f"note: {text}"), style="yellow", action="note", fit=partial(fitted, hang=6))

    def rows(self, rows: list[tuple[str, str]]) -> None:
        width = max((len(name) for name, _ in rows), default=0)
        for name, value in rows:
            self.print(type(value)(f"  {name.ljust(width)}  {value}"), fit=partial(fitted, hang=width + 4))


class TrainingBar:
    """The one progress bar of the training loop, from optimizer step `start` to `total`: loss, tokens/s and ETA."""

    def __init__(self, console: Console, total: int, start: int) -> None:
        self.console = console
        self.total = total
        self.start = start
        self.began = self._printed = time.monotonic()
        self._parts: list[str] = []
        self._bar: Progress | None = None
        if console.terminal:
            self._bar = Progress(
                TextColumn("training"),
                BarColumn(bar_width=_BAR),
                MofNCompleteColumn(),
                # One line, whatever the terminal's width: a bar that wraps scrolls the screen away.
                TextColumn("{task.fields[figures]}", table_column=Column(no_wrap=True, overflow="ellipsis")),
                console=console._rich,
                transient=True,
                # What libraries write to stderr belongs in the rank's log, not above the bar.
                redirect_stdout=False,
                redirect_stderr=False,
            )
            self._bar.start()
            self._task = self._bar.add_task("training", total=total, completed=start, figures="")

    def advance(self, step: int) -> None:
        if self._bar:
            # Beside "training", the bar, and "5/100".
            room = (self.console.width or 80) - len("training ") - _BAR - 2 * len(str(self.total)) - 4
            parts = [*self._parts]
            while parts and len(self._figures(step, parts)) > room:
                parts.pop()
            self._bar.update(self._task, completed=step, figures=self._figures(step, parts))

    def figures(self, step: int, values: dict[str, float], *, last: bool = False) -> None:
        parts = [f"loss {number(values['loss'])}"] if "loss" in values else []
        parts += [f"lr {number(values['lr'])}"] if "lr" in values else []
        parts += [f"{values['tokens_per_s']:,.0f} tokens/s"] if values.get("tokens_per_s") else []
        # Less costs no time that anybody would notice.
        parts += [f"{100 * values['padding']:.0f}% padding"] if values.get("padding", 0) >= SHOWN_PADDING else []
        self._parts = parts
        self.advance(step)
        now = time.monotonic()
        if self.console.as_json:
            known = {"step": step, "max_steps": self.total, **values}
            shown = f"step {step}/{self.total}  {self._figures(step, parts)}"
            named = {f"dsrun.{name}": value for name, value in known.items()}
            self.console.event(shown, action="training-progress", fields=named)
        elif not self._bar and (last or now - self._printed >= SECONDS_BETWEEN_PLAIN_LINES):
            self._printed = now
            self.console.print(f"step {step}/{self.total}  {self._figures(step, parts)}")

    def _figures(self, step: int, parts: list[str]) -> str:
        done = step - self.start
        eta = duration((time.monotonic() - self.began) / done * (self.total - step)) if done else "?"
        return "  ".join([*parts, f"ETA {eta}"])

    def stop(self) -> None:
        if self._bar:
            self._bar.stop()


class PlainTask:
    """Progress of something that is not training, such as tokenising; silent when it finishes soon."""

    def __init__(self, console: Console, what: str) -> None:
        self.console = console
        self.what = what
        self._done = 0
        self._printed = time.monotonic()

    def update(self, done: int, total: int) -> None:
        now = time.monotonic()
        if not self._done or done < self._done:
            # It has only begun now, or begun again.
            self._printed = now
        self._done = done
        if now - self._printed >= SECONDS_BETWEEN_PLAIN_LINES and done < total:
            self._printed = now
            self.console.print(f"{self.what} {done:,}/{total:,}")


class _OwnTerminal(io.TextIOWrapper):
    """A way to the user that this process does not share with a supervisor: its status stands aside."""

    def write(self, text: str) -> int:
        with writing(text.encode(errors="replace"), line=False):
            count = super().write(text)
            self.flush()
        return count


def open_console(channel: str | None) -> TextIO:
    """The way to the user: the launcher's pipe `channel`, else a copy of the stderr this process was started with."""
    if channel:
        return Path(channel).open("w", encoding="utf-8", buffering=1)
    return _OwnTerminal(os.fdopen(os.dup(2), "wb"), encoding="utf-8", line_buffering=True)


def command_log(name: str) -> Path:
    """Where a command without a run folder writes what libraries say."""
    return cache_root() / f"{name}.log"


@contextmanager
def quiet_console(name: str, what: str, *, debug: bool = False) -> Iterator[Console]:
    """The console of the command `name`, with its status, which begins with `what`. What libraries print goes into
    its log in the cache; with `debug` to the terminal as well."""
    out = open_console(None)
    console = Console(out, width=terminal_width(sys.stderr), as_json=is_json())
    log = command_log(name)
    with suppress(FileNotFoundError):
        if log.stat().st_size > LARGEST_LOG:
            log.unlink()
    try:
        send_output_to(log, echo=debug)
    except OSError as error:
        console.notice(f"{log}: {error.strerror}: what libraries say is printed here")
    with out, console.status(what):
        yield console


def send_output_to(log: Path, *, echo: bool = False) -> None:
    """Point stdout and stderr, those of C++ libraries included, to `log`; logging lines there carry the time.

    With `echo` (--debug) the terminal keeps everything and only the logging module's lines go to the file as well."""
    log.parent.mkdir(parents=True, exist_ok=True)
    handlers: list[logging.Handler] = [logging.FileHandler(log)] if echo else []
    if not echo:
        fd = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        for target in (1, 2):
            os.dup2(fd, target)
        os.close(fd)
        if isinstance(sys.stdout, io.TextIOWrapper):
            sys.stdout.reconfigure(line_buffering=True)
    handlers.append(logging.StreamHandler(sys.stderr))
    # `force`, as libraries imported before may have set up the root logger, and basicConfig then does nothing.
    logging.basicConfig(format=LOG_FORMAT, level=logging.DEBUG if echo else logging.INFO, handlers=handlers, force=True)
    # These report every HTTP request and file lock at INFO and DEBUG.
    for chatty in ("httpx", "httpcore", "filelock", "urllib3", "fsspec", "matplotlib", "numexpr"):
        logging.getLogger(chatty).setLevel(logging.WARNING)
    logging.captureWarnings(True)
    warnings.simplefilter("default" if echo else "once")


def shortened(text: str) -> str:
    """The beginning of a text for the screen; a file has the whole."""
    line = " ".join(text.split())
    return line if len(line) <= SHOWN_LENGTH else line[: SHOWN_LENGTH - 2].rstrip() + " …"
