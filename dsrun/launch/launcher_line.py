"""Lines of other launchers behind `dsrun launch --`, as dsrun's own options and the program that they start."""

import json
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path, PurePosixPath
from typing import Any, Literal

from dsrun.errors import MissingError, UsageError
from dsrun.launch.launchers import PYTHON
from dsrun.launch.torchrun_line import LauncherLine, parse_torchrun
from dsrun.system.env import is_count
from dsrun.system.shell import command_line

READER = Path(__file__).with_name("read_launcher_line.py")
READ_S = 180
"""Seconds for the launcher's own code, which imports torch: two on a fast disk."""
LauncherName = Literal["torchrun", "torch.distributed.launch", "accelerate launch", "deepspeed"]
# The words that each of them is called by, as a program or as a module of Python.
_PROGRAMS: Mapping[tuple[str, ...], LauncherName] = {
    ("torchrun",): "torchrun",
    ("accelerate", "launch"): "accelerate launch",
    ("accelerate-launch",): "accelerate launch",
    ("deepspeed",): "deepspeed",
    ("deepspeed.pt",): "deepspeed",
}
_MODULES: Mapping[str, LauncherName] = {
    "torch.distributed.run": "torchrun",
    "torch.distributed.launch": "torch.distributed.launch",
    "accelerate.commands.launch": "accelerate launch",
    "deepspeed.launcher.runner": "deepspeed",
}
# Set anew for each rank, or as torch.distributed.run does by itself.
_RANKS_OWN = frozenset({"MASTER_ADDR", "MASTER_PORT", "RANK", "LOCAL_RANK", "WORLD_SIZE"})
_OLD_HOSTFILE = Path("/job/hostfile")
_NOTHING = frozenset({"user_script", "user_args", "module", "no_python", "hostfile", "no_local_rank"})
# What deepspeed is told about itself alone.
_IGNORED = frozenset(
    {"enable_each_rank_log", "force_multi", "log_level", "no_ssh", "no_ssh_check", "quiet", "save_pid"}
)


def launcher_line(argv: Sequence[str], environ: Mapping[str, str]) -> LauncherLine | None:
    """What a line that begins with one of these launchers says; None for another program.

    Raises UsageError for what dsrun launch cannot follow, MissingError for a launcher that is not there.
    """
    found = _launcher(argv)
    if found is None:
        return None
    name, python, words = found
    if name in ("torchrun", "torch.distributed.launch"):
        line = replace(parse_torchrun(words, name), python=python)
        options = words[: len(words) - len(line.program)]
        hands_on = name != "torchrun" and not {"--use-env", "--use_env"} & set(options)
        return replace(line, local_rank="--local-rank" if hands_on else None)
    read = _of_accelerate if name == "accelerate launch" else _of_deepspeed
    said = _read(name, python, words, environ)
    mode = ("--module",) if said["module"] else ("--no-python",) if said["no_python"] else ()
    program = (said["script"], *said["arguments"])
    return read(said, LauncherLine(launcher=name, python=_shown(python), mode=mode, program=program))


def _launcher(argv: Sequence[str]) -> tuple[LauncherName, str, list[str]] | None:
    """The launcher, the Python that has it, and its arguments."""
    first, *rest = argv
    base = PurePosixPath(first).name
    if PYTHON.fullmatch(base) and rest[:1] == ["-m"] and len(rest) > 1 and rest[1] in _MODULES:
        return _MODULES[rest[1]], first, rest[2:]
    for words, name in _PROGRAMS.items():
        if (base, *rest[: len(words) - 1]) == words:
            return name, "python" if name == "torchrun" else _python_of(first), rest[len(words) - 1 :]
    return None


def _python_of(program: str) -> str:
    """The Python of the environment that a program was installed into. Raises MissingError where it is not there."""
    found = shutil.which(program)
    if found is None:
        raise MissingError(f"there is no program {program}", fix=f"-- PATH/TO/{PurePosixPath(program).name} …")
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
        raise MissingError(f"{python} cannot be started: {error.strerror}", fix="name another Python") from error
    except subprocess.TimeoutExpired as error:
        raise UsageError(f"{name} did not say within {READ_S} s what it would start", fix="-- python …") from error
    if done.returncode == 0:
        return dict(json.loads(done.stdout.splitlines()[-1]))
    said = (done.stderr.strip().splitlines() or ["it says nothing"])[-1]
    reason = said.partition("rror: ")[2] or said
    raise UsageError(f"{name}: {reason}", fix="correct its options, or -- python my_train.py …")


def _of_accelerate(said: Mapping[str, Any], line: LauncherLine) -> LauncherLine:
    given, nodes = said["given"], said["given"]["num_machines"] or 1
    ranks = given["num_processes"] or 0
    if ranks % nodes:
        raise UsageError(
            f"accelerate launch: --num_processes {ranks} counts those of all {nodes} machines, and does not divide",
            fix=f"--num_processes {nodes * (ranks // nodes or 1)}",
        )
    # One thread is what torch.distributed.run takes as well where nobody says anything.
    env = {name: value for name, value in said["env"].items() if name not in _RANKS_OWN}
    env = {name: value for name, value in env.items() if (name, value) != ("OMP_NUM_THREADS", "1")}
    several, file = nodes > 1, env.get("ACCELERATE_DEEPSPEED_CONFIG_FILE", "")
    # It may also be the configuration itself, in base64.
    if ("/" in file or "." in file) and not Path(file).is_file():
        raise UsageError(f"accelerate launch: there is no file {file}, its deepspeed_config_file", fix="correct it")
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


def _of_deepspeed(said: Mapping[str, Any], line: LauncherLine) -> LauncherLine:
    given = dict(said["given"])
    hostfile = Path(given["hostfile"]) if "hostfile" in given else _OLD_HOSTFILE if _OLD_HOSTFILE.is_file() else None
    nodes, nproc, include = given.pop("num_nodes", None), given.pop("num_gpus", None), given.pop("include", None)
    env: dict[str, str] = {}
    if hostfile is not None and nodes:
        raise UsageError(
            f"deepspeed --num_nodes {nodes}: dsrun launch starts on all machines of {hostfile}",
            fix="--include HOST@HOST instead",
        )
    if hostfile is None and include:
        host, _, slots = include.partition(":")
        if host != "localhost" or not slots:
            raise UsageError(f"deepspeed --include {include}: there is no hostfile", fix="--include localhost:0,1")
        if not all(map(is_count, slots.split(","))):
            raise UsageError(f"deepspeed --include {include} names no GPUs by number", fix="--include localhost:0,1")
        env, include, nproc = {"CUDA_VISIBLE_DEVICES": slots}, None, nproc or len(slots.split(","))
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
        local_rank=None if said["given"].get("no_local_rank") else "--local_rank",
        env=env,
    )
    if unknown := sorted(given.keys() - _NOTHING - _IGNORED):
        raise UsageError(
            f"deepspeed --{unknown[0]}: dsrun launch has nothing like it",
            fix=f"remove it, or dsrun launch … -- {command_line(line.command)}",
        )
    return line
