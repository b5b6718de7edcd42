"""torchrun's command line, which is also that of torch.distributed.launch. Pure."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from dsrun.datafiles import toml_beside
from dsrun.launch.environment import LOCAL_RANK
from dsrun.launch.refusals import refusal
from dsrun.system.env import is_count, shortened

_OPTIONS = toml_beside(__file__, "launcher_line.toml")["torchrun"]
_VALUED = frozenset([*_OPTIONS["valued"], *_OPTIONS["ignored"]])
_MODES: Mapping[str, str] = _OPTIONS["modes"]
_SHORT: Mapping[str, str] = _OPTIONS["short"]
_BACKENDS = ("c10d", "static")


@dataclass(frozen=True, kw_only=True)
class LauncherLine:
    """What the command line of a launcher says; None for what it does not say.

    `mode` and `program` are its program's, which `python` runs, with the flag `local_rank` for each rank's number on
    its machine, if the launcher hands that on; `env` are the variables that it sets.
    """

    launcher: str
    python: str = "python"
    nodes: int | None = None
    node_rank: int | None = None
    nproc: int | None = None
    master_addr: str | None = None
    master_port: int | None = None
    max_restarts: int | None = None
    hostfile: Path | None = None
    include: str | None = None
    exclude: str | None = None
    rdzv_id: str | None = None
    mode: tuple[str, ...] = ()
    program: tuple[str, ...]
    local_rank: str | None = None
    env: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.program[0].startswith("-"):
            raise refusal("line.unknown", launcher=self.launcher, word=self.program[0])

    @property
    def assignments(self) -> list[str]:
        """NAME=VALUE of the variables that say something."""
        return [f"{key}={value}" for key, value in self.env.items() if value.lower() not in ("no", "false", "default")]

    @property
    def command(self) -> tuple[str, ...]:
        """The program as the command that each rank runs."""
        before = {(): (self.python,), ("--module",): (self.python, "-m"), ("--no-python",): ()}[self.mode]
        entry, *words = self.program
        rank = (f"{self.local_rank}={LOCAL_RANK}",) if self.local_rank else ()
        return (*before, entry, *rank, *words)


def parse_torchrun(argv: Sequence[str], launcher: str = "torchrun") -> LauncherLine:
    """Read the options up to the program. Raises UsageError for those that are none, or that cannot be followed.

    Those of torch.distributed.launch are the same, and its own --use-env.
    """
    values: dict[str, str] = {}
    mode: list[str] = []
    position = 0
    while position < len(argv) and argv[position].startswith("-"):
        word = argv[position]
        position += 1
        if word == "--":
            break
        name, equals, value = word.lstrip("-").partition("=")
        name = name.replace("-", "_")
        name = _SHORT.get(name, name) if not word.startswith("--") else name
        if name in _OPTIONS["switches"]:
            continue
        if name in _MODES:
            mode.append(_MODES[name])
            continue
        if name not in _VALUED:
            raise refusal("torchrun.unknown", launcher=launcher, word=word)
        if not equals:
            if position == len(argv):
                raise refusal("torchrun.no_value", launcher=launcher, word=word)
            value = argv[position]
            position += 1
        values[name] = value
    if position >= len(argv):
        raise refusal("torchrun.no_program", launcher=launcher)
    return _torchrun(launcher, values, tuple(mode), argv[position:])


def _torchrun(launcher: str, values: dict[str, str], mode: tuple[str, ...], program: Sequence[str]) -> LauncherLine:
    backend = values.get("rdzv_backend") or "c10d"
    if backend not in _BACKENDS:
        raise refusal("torchrun.backend", launcher=launcher, backend=backend)
    host, port = _endpoint(launcher, values.get("rdzv_endpoint", ""))
    nproc = values.get("nproc_per_node")
    return LauncherLine(
        launcher=launcher,
        nodes=_integer(launcher, values, "nnodes"),
        node_rank=_integer(launcher, values, "node_rank"),
        nproc=None if nproc in ("auto", "gpu") else _integer(launcher, values, "nproc_per_node"),
        master_addr=values.get("master_addr") or host,
        master_port=_integer(launcher, values, "master_port") or port,
        max_restarts=_integer(launcher, values, "max_restarts"),
        rdzv_id=values.get("rdzv_id"),
        mode=mode,
        # torchrun makes one $ of two, and so will the one that is started with these words.
        program=tuple(
            word if at == 0 and "--no-python" in mode else word.replace("$$", "$") for at, word in enumerate(program)
        ),
    )


def _integer(launcher: str, values: dict[str, str], name: str) -> int | None:
    text = values.get(name)
    if text is None:
        return None
    flag = f"--{name.replace('_', '-')}"
    if not is_count(text):
        key = "torchrun.range" if ":" in text else "torchrun.number"
        raise refusal(key, launcher=launcher, flag=flag, text=shortened(text))
    return int(text)


def _endpoint(launcher: str, text: str) -> tuple[str | None, int | None]:
    """ "host:port", "[::1]:port", "host"."""
    if not text:
        return None, None
    host, colon, port = text.rpartition(":")
    if not colon or text.endswith("]"):
        return text.strip("[]"), None
    if not is_count(port):
        raise refusal("torchrun.endpoint", launcher=launcher, text=shortened(text))
    return host.strip("[]"), int(port)
