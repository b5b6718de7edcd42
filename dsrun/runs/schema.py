"""The keys of the files in a run folder; docs/run-folder.md explains them, and a test holds both equal."""

from __future__ import annotations

from typing import Any, Literal, NotRequired, TypedDict

MANIFEST_VERSION = 1

EventKind = Literal[
    "start", "resume", "training", "progress", "checkpoint_begin", "checkpoint_end", "checkpoint_failed",
    "evaluate", "nan", "spike", "interval", "signal", "failing", "waiting", "failure", "remedy", "restart",
    "straggler", "end",
]  # fmt: skip


class Stamped(TypedDict):
    """What every line of both ledgers carries."""

    time: str  # ISO 8601 in UTC with milliseconds and Z
    elapsed: float  # seconds by the monotonic clock since this process opened the file
    nonfinite: NotRequired[dict[str, str]]  # key -> "nan", "inf" or "-inf" for values written as null


class Metric(Stamped):
    """A line of metrics.jsonl: one logged step or one evaluation. Writers may add keys such as eval_loss."""

    step: int
    epoch: NotRequired[float]
    loss: NotRequired[float | None]
    lr: NotRequired[float]
    grad_norm: NotRequired[float | None]
    tokens: NotRequired[int]
    tokens_per_s: NotRequired[float]
    mfu: NotRequired[float]
    padding: NotRequired[float]
    gpu_memory: NotRequired[int]
    gpu_memory_peak: NotRequired[int]
    host_memory: NotRequired[int]
    host_memory_peak: NotRequired[int]


class Event(Stamped):
    """A line of events.jsonl."""

    kind: EventKind
    pid: int
    host: str
    boot: NotRequired[str]
    uptime: NotRequired[float]
    step: NotRequired[int]
    max_steps: NotRequired[int]
    path: NotRequired[str]
    seconds: NotRequired[float]
    starting_s: NotRequired[float]
    queued_s: NotRequired[float]
    metrics: NotRequired[dict[str, Any]]
    signal: NotRequired[str]
    signalled_host: NotRequired[str]
    signalled_at: NotRequired[str]
    cause: NotRequired[str]
    message: NotRequired[str]
    exit_code: NotRequired[int]
    world_size: NotRequired[int]
    attempt: NotRequired[int]
    requeue: NotRequired[int]
    rank: NotRequired[int]
    node: NotRequired[int]
    failed_host: NotRequired[str]
    steps: NotRequired[int]
    written_s: NotRequired[float]
    bytes: NotRequired[int]
    halvings: NotRequired[int]
    recompute: NotRequired[bool]
    offload: NotRequired[str]
    gpu: NotRequired[str]
    slowdown: NotRequired[float]
    chronic: NotRequired[bool]


class Run(TypedDict):
    """run.json."""

    version: int
    time: str
    command: list[str]
    host: str
    git_commit: str | None
    versions: dict[str, str]
    specs: dict[str, Any]
    sources: NotRequired[dict[str, str]]
    packing: NotRequired[dict[str, Any]]
    speed: NotRequired[dict[str, Any]]
    world_size: NotRequired[int]
    gpus: NotRequired[list[str]]


class ManifestFile(TypedDict):
    """One file of a checkpoint."""

    size: int  # bytes
    crc32: str  # eight hexadecimal digits of zlib.crc32


class Manifest(TypedDict):
    """manifest.json of a checkpoint."""

    version: int
    time: str
    files: dict[str, ManifestFile]  # by path relative to the checkpoint, with /
    extra: dict[str, Any]  # what the writer adds, such as step and world_size
    crc32: NotRequired[str]  # of the other keys as compact, sorted JSON; missing before dsrun 0.2
