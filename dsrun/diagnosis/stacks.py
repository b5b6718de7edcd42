"""Where processes stand: the stacks that py-spy and faulthandler write, and what the kernel says a thread waits for."""

import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

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


# The public functions of torch.distributed that wait for other ranks, in the words of its documentation.
_COLLECTIVES = re.compile(
    r"(all_)?reduce(_coalesced|_scatter(_tensor|_single)?)?|broadcast(_object_list)?|(monitored_)?barrier"
    r"|(all_)?gather(_into_tensor|_single|_coalesced|_object)?|scatter(_object_list)?|all_to_all(_single)?"
    r"|(send|recv)(_object_list)?|batch_isend_irecv|new_(sub)?groups?|split_group|(init|destroy)_process_group|wait_tensor"
)
_OF_TORCH = re.compile(r"torch/distributed/(distributed_c10d|_functional_collectives)\.py$")
# What only passes a call on: torch's logging, DeepSpeed's and Accelerate's own names for the same operations, and the
# clock of dsrun's step times.
_PASSES_ON = re.compile(
    r"torch/distributed/|deepspeed/(comm|utils)/|accelerate/|torch/utils/_contextlib\.py$|dsrun/train/loop/step_times\.py$"
)
_BUILD_LOCK = "the lock of another build of the operation"
# kind, name, file, function; the first that a frame matches, from the innermost outwards.
_KNOWN: tuple[tuple[StackKind, str, str, str], ...] = (
    ("loader", "DataLoader.__next__", r"torch/utils/data/dataloader\.py$", r"__next__|_next_data"),
    ("collective", "all_gather", r"deepspeed/runtime/zero/partition_parameters\.py$", r"wait"),
    ("collective", "all_gather", r"deepspeed/runtime/zero/partitioned_param_coordinator\.py$", r"fetch_sub_module"),
    ("collective", "broadcast of DDP's buffers", r"torch/nn/parallel/distributed\.py$", r"_sync_\w+|_pre_forward"),
    ("collective", "DDP's check of shapes", r"torch/distributed/utils\.py$", r"_verify_param_shape\w*|_sync_\w+"),
    ("gpu", "torch.cuda.synchronize", r"torch/cuda/(__init__|streams)\.py$", r"synchronize"),
    ("files", "torch.save", r"torch/serialization\.py$", r"save|_save"),
    ("files", "torch.load", r"torch/serialization\.py$", r"load|_load"),
    ("files", "a save of safetensors", r"safetensors/torch\.py$", r"save\w*"),
    ("lock", "a lock file", r"(^|/)filelock/", r"acquire|_acquire"),
    ("lock", _BUILD_LOCK, r"torch/utils/file_baton\.py$", r"wait"),
    ("child", "the compilation of an operation", r"torch/utils/cpp_extension\.py$", r"\w*"),
    ("child", "a child process", r"(^|/)subprocess\.py$", r"wait|_wait|_try_wait|communicate|_communicate"),
    ("network", "an HTTP request", r"(^|/)(urllib3|httpx|httpcore|requests|http)/", r"\w*"),
    ("lock", "lock.acquire", r"(^|/)threading\.py$", r"wait|acquire|join|_wait_for_tstate_lock"),
    ("lock", "queue.get", r"(^|/)(queue|multiprocessing/queues)\.py$", r"get"),
)
_RULES = tuple((kind, name, re.compile(file), re.compile(function)) for kind, name, file, function in _KNOWN)
_BACKWARD = re.compile(r"torch/autograd/(graph|__init__)\.py$")
_LIBRARY = re.compile(r"/(site|dist)-packages/|/lib/python3[^/]*/|^<frozen")
# py-spy leaves out the folder that a module was found in.
_LIBRARIES = sys.stdlib_module_names | {
    "torch", "deepspeed", "transformers", "accelerate", "datasets", "peft", "numpy", "safetensors", "pyarrow",
    "filelock", "urllib3", "httpx", "httpcore", "requests", "huggingface_hub", "trl", "lightning",
}  # fmt: skip

# The beginning of a wait channel, as in /proc/PID/wchan: functions of the Linux kernel.
_CHANNELS: tuple[tuple[StackKind, str, str], ...] = (
    ("sleep", "time.sleep", r"hrtimer_nanosleep|do_nanosleep|common_nsleep"),
    ("lock", "lock.acquire", r"futex"),
    ("files", "flock", r"\w*lock_inode_wait|fcntl_setlk|posix_lock"),
    ("files", "a pipe's read", r"(anon_)?pipe_|wait_for_partner|fifo_open"),
    ("child", "a child process", r"do_wait|kernel_wait"),
    ("network", "a socket's recv", r"sk_wait|inet_|unix_stream|tcp_|wait_woken|skb_"),
    (
        "files",
        "file I/O",
        r"nfs|rpc_|io_schedule|folio_|fuse|request_wait_answer|ceph|ptlrpc|cl_|ext4|xfs|jbd2|wait_on_",
    ),
)
# Where the kernel hides wait channels: the system call, by number on x86-64 and on arm64 (asm/unistd.h).
_CALLS: tuple[tuple[StackKind, str, tuple[int, ...]], ...] = (
    ("sleep", "time.sleep", (35, 230, 101, 115)),
    ("lock", "lock.acquire", (202, 98)),
    ("files", "flock", (73, 32)),
    ("files", "file I/O", (0, 1, 17, 18, 74, 257, 63, 64, 67, 68, 82, 56)),
    ("child", "a child process", (61, 247, 260, 95)),
    ("network", "a socket's recv", (45, 47, 207, 212)),
)


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
            for kind, name, file, function in _RULES:
                late = kind == "lock" and name != _BUILD_LOCK
                if late is locks and file.search(frame.file) and function.fullmatch(frame.function):
                    return kind, name
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
    frame = next((frame for frame in calls if not _is_library(frame.file)), calls[0])
    return f"{frame.function} ({'/'.join(frame.file.split('/')[-2:])}:{frame.line})"


def _is_library(file: str) -> bool:
    return bool(_LIBRARY.search(file)) or file.partition("/")[0].removesuffix(".py") in _LIBRARIES


def _kernel_wait(process: str) -> tuple[StackKind, str] | None:
    """What the main thread waits for, None where it computes or the kernel does not tell."""
    channel = re.search(r"^== wchan\n(\w+)", process, re.M)
    if channel and channel[1] != "0":
        for kind, name, pattern in _CHANNELS:
            if re.match(pattern, channel[1]):
                return kind, name
    call = re.search(r"^== syscall\n(\d+) ", process, re.M)
    for kind, name, numbers in _CALLS:
        if call and int(call[1]) in numbers:
            return kind, name
    return None
