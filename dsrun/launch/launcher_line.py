"""Lines of other launchers behind `dsrun launch --`, as dsrun's own options and the program that they start."""

import json
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path, PurePosixPath
from typing import Any, Literal

from dsrun.datafiles import toml_beside
from dsrun.launch.program import LOCAL_RANK, PYTHON
from dsrun.launch.refusals import refusal, refuse
from dsrun.system.env import is_count, shortened
from dsrun.system.shell import command_line

READER = Path(__file__).with_name("read_launcher_line.py")
READ_S = 180
"""Seconds for the launcher's own code, which imports torch: two on a fast disk."""
LauncherName = Literal["torchrun", "torch.distributed.launch", "accelerate launch", "deepspeed"]
_TABLE = toml_beside(__file__)
_PROGRAMS: Mapping[str, LauncherName] = _TABLE["programs"]
_MODULES: Mapping[str, LauncherName] = _TABLE["modules"]
# Set anew for each rank, or as torch.distributed.run does by itself.
_RANKS_OWN = frozenset({"MASTER_ADDR", "MASTER_PORT", "RANK", "LOCAL_RANK", "WORLD_SIZE"})
HOSTS = Path("/job/hostfile")
_KNOWN_TO_DEEPSPEED = frozenset([*_TABLE["deepspeed"]["read"], *_TABLE["deepspeed"]["ignored"]])
_OPTIONS = _TABLE["torchrun"]
_VALUED = frozenset([*_OPTIONS["valued"], *_OPTIONS["ignored"]])
_MODES: Mapping[str, str] = _OPTIONS["modes"]
_SHORT: Mapping[str, str] = _OPTIONS["short"]
_BACKENDS = ("c10d", "static")


@dataclass(frozen=True, kw_only=True)
class LauncherLine:
    """What the command line of a launcher says; None for what it does not say.

    `mode` and `program` are its program's, which `python` runs, with the flag `local_rank` for each rank's number on
    its machine, if the launcher hands that on; `env` are the variables that it sets, and `ignored` its options that
    have no counterpart here and change no training."""

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
    ignored: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.program[0].startswith("-"):
            raise refusal("line.unknown", launcher=self.launcher, word=self.program[0])

    @property
    def assignments(self) -> list[str]:
        """NAME=VALUE of the variables that say something."""
        return [f"{key}={value}" for key, value in self.env.items() if value.lower() not in ("no", "false", "default")]

    def given(self, *names: str) -> dict[str, Any]:
        """Those of these options that it says something of."""
        return {name: value for name in names if (value := getattr(self, name, None)) is not None}

    def same_as(self, command: str, others: Sequence[str] = ()) -> str:
        """The line for people that tells the `command` of dsrun that does the same, and which options, with these
        `others`, that leaves out."""
        left = ", ".join(f"--{name.replace('_', '-')}" for name in (*self.ignored, *others))
        return f"{self.launcher}: the same as {command}" + (f"; left out: {left}" if left else "")

    @property
    def command(self) -> tuple[str, ...]:
        """The program as the command that each rank runs."""
        before = {(): (self.python,), ("--module",): (self.python, "-m"), ("--no-python",): ()}[self.mode]
        entry, *words = self.program
        rank = (f"{self.local_rank}={LOCAL_RANK}",) if self.local_rank else ()
        return (*before, entry, *rank, *words)


def launcher_line(argv: Sequence[str], environ: Mapping[str, str], unnamed: Path | None = HOSTS) -> LauncherLine | None:
    """What a line that begins with a launcher says; None for another program. `unnamed` is the hostfile that deepspeed
    reads without being told, if it is there; None where the machines are not chosen here.

    Raises UsageError for what dsrun launch cannot follow, MissingError for a launcher that is not there."""
    found = _launcher(argv)
    if found is None:
        return None
    name, python, words = found
    if name in ("torchrun", "torch.distributed.launch"):
        line = replace(parse_torchrun(words, name), python=python)
        options = words[: len(words) - len(line.program)]
        hands_on = name != "torchrun" and not {"--use-env", "--use_env"} & set(options)
        return replace(line, local_rank="--local-rank" if hands_on else None)
    said = _read(name, python, words, environ)
    mode = ("--module",) if said["module"] else ("--no-python",) if said["no_python"] else ()
    program = (said["script"], *said["arguments"])
    line = LauncherLine(launcher=name, python=_shown(python), mode=mode, program=program)
    return _of_accelerate(said, line) if name == "accelerate launch" else _of_deepspeed(said, line, unnamed)


def refuse_other(own: Mapping[str, Any], given: Mapping[str, Any], line: LauncherLine, command: str) -> None:
    """Raise UsageError where an option of dsrun's `command` itself is another than that of the line behind it."""
    for name, value in given.items():
        if own.get(name) is not None and str(own[name]) != str(value):
            flag = f"--{name.replace('_', '-')}"
            raise refusal("line.twice", flag=flag, own=own[name], command=command, value=value, launcher=line.launcher)


def _launcher(argv: Sequence[str]) -> tuple[LauncherName, str, list[str]] | None:
    """The launcher, the Python that has it, and its arguments."""
    first, *rest = argv
    base = PurePosixPath(first).name
    if PYTHON.fullmatch(base) and rest[:1] == ["-m"] and len(rest) > 1 and rest[1] in _MODULES:
        return _MODULES[rest[1]], first, rest[2:]
    for called, name in _PROGRAMS.items():
        words = called.split()
        if [base, *rest[: len(words) - 1]] == words:
            return name, "python" if name == "torchrun" else _python_of(first), rest[len(words) - 1 :]
    return None


def _python_of(program: str) -> str:
    """The Python of the environment that a program was installed into, on PATH or else with dsrun. Raises MissingError
    where it is in neither."""
    found = shutil.which(program) or shutil.which(program, path=str(Path(sys.executable).parent))
    if found is None:
        raise refusal("line.no_program", program=program, name=PurePosixPath(program).name)
    beside = Path(found).with_name("python")
    return str(beside) if beside.exists() else sys.executable


def _shown(python: str) -> str:
    """The Python as a user would call it."""
    return "python" if Path(python).parent == Path(sys.executable).parent else python


def _read(name: LauncherName, python: str, words: Sequence[str], environ: Mapping[str, str]) -> dict[str, Any]:
    """What the launcher's own code makes of its line. Raises UsageError with its own words."""
    argv = [python, str(READER), name.split()[0], *words]
    try:
        done = subprocess.run(argv, env={**environ}, capture_output=True, text=True, timeout=READ_S, check=False)
    except OSError as error:
        raise refusal("line.no_python", python=python, why=error.strerror) from error
    except subprocess.TimeoutExpired as error:
        raise refusal("line.slow", name=name, seconds=READ_S) from error
    if done.returncode == 0:
        return dict(json.loads(done.stdout.splitlines()[-1]))
    said = (done.stderr.strip().splitlines() or ["it says nothing"])[-1]
    raise refusal("line.refused", name=name, reason=said.partition("rror: ")[2] or said)


def _of_accelerate(said: Mapping[str, Any], line: LauncherLine) -> LauncherLine:
    given, nodes = said["given"], said["given"]["num_machines"] or 1
    ranks = given["num_processes"] or 0
    if ranks % nodes:
        raise refusal("line.ranks", ranks=ranks, nodes=nodes, fitting=nodes * (ranks // nodes or 1))
    # One thread is what torch.distributed.run takes as well where nobody says anything.
    env = {name: value for name, value in said["env"].items() if name not in _RANKS_OWN}
    env = {name: value for name, value in env.items() if (name, value) != ("OMP_NUM_THREADS", "1")}
    several, file = nodes > 1, env.get("ACCELERATE_DEEPSPEED_CONFIG_FILE", "")
    # It may also be the configuration itself, in base64.
    if ("/" in file or "." in file) and not Path(file).is_file():
        raise refusal("line.no_config", file=file)
    return replace(
        line,
        nodes=nodes if several else None,
        node_rank=given["machine_rank"] if several else None,
        nproc=ranks // nodes or None,
        master_addr=given["main_process_ip"],
        master_port=given["main_process_port"],
        max_restarts=given["max_restarts"] or None,
        env=env,
    )


def _of_deepspeed(said: Mapping[str, Any], line: LauncherLine, unnamed: Path | None) -> LauncherLine:
    given = dict(said["given"])
    hostfile = Path(given["hostfile"]) if "hostfile" in given else unnamed if unnamed and unnamed.is_file() else None
    nodes, nproc, include = given.pop("num_nodes", None), given.pop("num_gpus", None), given.pop("include", None)
    host, _, slots = (include or "").partition(":")
    is_local, numbers, env = hostfile is None and bool(include), slots.split(","), dict[str, str]()
    names = {"hostfile": hostfile, "nodes": nodes, "include": include, "is_local": is_local, "host": host}
    refuse("deepspeed", **names, slots=slots, are_numbers=all(map(is_count, numbers)))
    if is_local:
        env, include, nproc = {"CUDA_VISIBLE_DEVICES": slots}, None, nproc or len(numbers)
    line = replace(
        line,
        nodes=nodes,
        node_rank=given.pop("node_rank", None),
        nproc=nproc,
        master_addr=given.pop("master_addr", None),
        master_port=given.pop("master_port", None),
        hostfile=hostfile,
        include=include,
        exclude=given.pop("exclude", None),
        ignored=tuple(name for name in _TABLE["deepspeed"]["ignored"] if name in given),
        local_rank=None if said["given"].get("no_local_rank") else "--local_rank",
        env=env,
    )
    if unknown := sorted(given.keys() - _KNOWN_TO_DEEPSPEED):
        raise refusal("line.unknown_of_deepspeed", option=unknown[0], command=command_line(line.command))
    return line


def parse_torchrun(argv: Sequence[str], launcher: str = "torchrun") -> LauncherLine:
    """Read the options up to the program. Raises UsageError for those that are none, or that cannot be followed.

    Those of torch.distributed.launch are the same, and its own --use-env."""
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
        ignored=tuple(name for name in _OPTIONS["ignored"] if name in values),
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
