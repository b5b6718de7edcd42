"""Where processes stand: the stacks that py-spy and faulthandler write, and what the kernel says a thread waits for."""

import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from dsrun.datafiles import toml_beside

StackKind = Literal[
    "collective", "gpu", "loader", "stopped", "lock", "sleep", "files", "child", "network", "code", "unknown"
]
"""What a thread does: a collective operation waits for other ranks, and so may the GPU; all else is its own affair."""


@dataclass(frozen=True)
class StackFrame:
    function: str
    file: str
    line: int


@dataclass(frozen=True)
class ThreadStack:
    """The frames of one thread, the innermost first."""

    main: bool
    frames: tuple[StackFrame, ...]


@dataclass(frozen=True)
class StackPlace:
    """Where a rank stands. `name` is for people: "all_reduce", "DataLoader.__next__", "time.sleep at step (a.py:12)".
    `site` is the line of the program that called it, which tells two calls of one operation apart."""

    kind: StackKind
    name: str
    site: str = ""


_PY_SPY_THREAD = re.compile(r'^Thread .*?\((?:idle|active)[^)]*\)(?:: "(?P<name>.*)")?\s*$')
_PY_SPY_FRAME = re.compile(r"^ {4}(?P<function>\S.*) \((?P<file>[^()]*):(?P<line>\d+)\)\s*$")
_HANDLER_THREAD = re.compile(r"^(?:Current thread|Thread) 0x[0-9a-f]+.*\(most recent call first\):")
_HANDLER_FRAME = re.compile(r'^ {2}File "(?P<file>.*)", line (?P<line>\d+) in (?P<function>.*?)\s*$')


def parse_stacks(text: str) -> list[ThreadStack]:
    """The threads in the output of `py-spy dump` or of faulthandler; [] where there is none."""
    names: list[str | None] = []
    frames: list[list[StackFrame]] = []
    for line in text.splitlines():
        if match := _PY_SPY_THREAD.match(line) or _HANDLER_THREAD.match(line):
            names.append(match.groupdict().get("name"))
            frames.append([])
        elif frames and (match := _PY_SPY_FRAME.match(line) or _HANDLER_FRAME.match(line)):
            function = match["function"].rpartition("<locals>.")[2]
            frames[-1].append(StackFrame(function.rpartition(".")[2], match["file"], int(match["line"])))
    # faulthandler gives no names, and writes the main thread last: the newest comes first.
    main = names.index("MainThread") if "MainThread" in names else len(names) - 1
    return [ThreadStack(index == main, tuple(found)) for index, found in enumerate(frames)]


_TABLE = toml_beside(__file__)
_COLLECTIVES, _OF_TORCH, _PASSES_ON, _BACKWARD, _LIBRARY = (
    re.compile(_TABLE[name]) for name in ("collectives", "of_torch", "passes_on", "backward", "library")
)
_BUILD_LOCK = "the lock of another build of the operation"
_LIBRARIES = sys.stdlib_module_names | set(_TABLE["libraries"])


def place_of(text: str, process: str = "") -> StackPlace:
    """Where the main thread stands, from its stacks and from what the kernel says (`rank-R.proc.txt`)."""
    if re.search(r"^State:\s+[Tt]\b", process, re.M):
        return StackPlace("stopped", "stopped (SIGSTOP)")
    threads = parse_stacks(text)
    frames = next((thread.frames for thread in threads if thread.main), ())
    if not frames:
        return StackPlace("unknown", "without a stack")
    waits = _kernel_wait(process)
    site = _site(frames)
    if found := _operation(frames):
        return StackPlace("collective", found, site)
    if known := _known(frames):
        kind, name = known
        locks = re.search(r"^== build locks\n(.+)", process, re.M) if name == _BUILD_LOCK else None
        return StackPlace(kind, f"{name}, {locks[1]}" if locks else name, site)
    if any(_BACKWARD.search(frame.file) for frame in frames[:2]) and waits and waits[0] == "lock":
        return StackPlace("collective", "all_reduce of gradients in the backward pass", site)  # DDP, in C++
    return StackPlace(waits[0], f"{waits[1]} at {site}", site) if waits else StackPlace("code", site, site)


def _known(frames: Sequence[StackFrame]) -> tuple[StackKind, str] | None:
    """What the innermost frame that a rule knows is about. Locks but those of builds come last: a loader waits at one
    of its own."""
    for locks in (False, True):
        for frame in frames:
            for rule in _TABLE["known"]:
                late = rule["kind"] == "lock" and rule["name"] != _BUILD_LOCK
                in_file = late is locks and re.search(rule["file"], frame.file)
                if in_file and re.fullmatch(rule["function"], frame.function):
                    return rule["kind"], rule["name"]
    return None


def _operation(frames: Sequence[StackFrame]) -> str:
    """The collective operation that the innermost frames are in, by the name that the program called; "" for none."""
    name = ""
    for frame in frames:
        if _OF_TORCH.search(frame.file) and _COLLECTIVES.fullmatch(frame.function):
            name = frame.function
        elif name and not _PASSES_ON.search(frame.file):
            break
    return name


def _site(frames: Sequence[StackFrame]) -> str:
    """The innermost line of the program itself, else of whichever library: "step (train.py:12)"."""
    calls = [frame for frame in frames if not _PASSES_ON.search(frame.file)] or frames
    own = (each for each in calls if each.file.partition("/")[0].removesuffix(".py") not in _LIBRARIES)
    frame = next((each for each in own if not _LIBRARY.search(each.file)), calls[0])
    return f"{frame.function} ({'/'.join(frame.file.split('/')[-2:])}:{frame.line})"


def _kernel_wait(process: str) -> tuple[StackKind, str] | None:
    """What the main thread waits for, None where it computes or the kernel does not tell."""
    channel = re.search(r"^== wchan\n(\w+)", process, re.M)
    if channel and channel[1] != "0":
        for each in _TABLE["channels"]:
            if re.match(each["pattern"], channel[1]):
                return each["kind"], each["name"]
    call = re.search(r"^== syscall\n(\d+) ", process, re.M)
    for each in _TABLE["calls"]:
        if call and int(call[1]) in each["numbers"]:
            return each["kind"], each["name"]
    return None
