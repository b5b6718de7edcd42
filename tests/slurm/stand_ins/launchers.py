# ruff: noqa: PTH111, PTH123
"""Stand-ins for python, torchrun, accelerate, deepspeed and what else scripts of trainings call, without torch.

They read the flags and variables that the real ones read, and their ranks really meet: over TCP, at the address and
port that the script gives, each rank once and as many as the world has. A launcher answers for its ranks in its own
process.

Hundreds of them start in a test: what takes time to import is imported where it is used, or, like pathlib, not at all.
"""

from __future__ import annotations

import os
import sys

from .meeting import Failure, host_name, meet, train, visible_gpus

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import NoReturn

TORCHRUN = {
    "nnodes", "nproc_per_node", "node_rank", "master_addr", "master_port", "rdzv_backend", "rdzv_endpoint", "rdzv_id",
    "rdzv_conf", "max_restarts", "standalone", "m",
}  # fmt: skip
ACCELERATE = {
    "num_machines", "num_processes", "machine_rank", "main_process_ip", "main_process_port", "rdzv_backend",
    "config_file", "mixed_precision", "multi_gpu", "m",
}  # fmt: skip
DEEPSPEED = {"hostfile", "H", "num_gpus", "master_addr", "master_port"}
SWITCHES = {"standalone", "multi_gpu", "m"}
AUXILIARY = ("prepare", "tokenize", "plot")
"""In the names of programs that train nothing."""


def main(name: str, words: list[str]) -> None:
    try:
        PROGRAMS[name](words)
    except Failure as failure:
        print(f"{name}: {failure}", file=sys.stderr)
        sys.exit(1)


def python(words: list[str]) -> None:
    while words and words[0].startswith("-") and words[0] not in ("-m", "-c", "-"):
        words = words[1:]
    if words[:1] == ["-m"] and (launcher := MODULES.get(words[1])):
        return launcher(words[2:])
    if not words or words[0] in ("-c", "-"):
        os.execv(sys.executable, [sys.executable, *words])
    program = words[1] if words[0] == "-m" else words[0]
    if any(name in program for name in AUXILIARY):
        return None
    _program_exists(program)
    lightning = [word for word in words if word.startswith("--trainer.devices=")]
    if lightning:
        rank, world, local, address = _as_lightning(int(lightning[0].partition("=")[2]))
    elif {"RANK", "WORLD_SIZE", "MASTER_ADDR"} & os.environ.keys():
        rank, world = _number("RANK"), _number("WORLD_SIZE")
        local = _number("LOCAL_RANK") if "LOCAL_RANK" in os.environ else rank % max(1, len(visible_gpus()))
        address = (_variable("MASTER_ADDR"), _number("MASTER_PORT"))
    else:
        rank, world, local, address = 0, 1, 0, ("localhost", 0)
    if not 0 <= rank < world:
        raise Failure(f"rank {rank} of a world of {world}")
    world_id = f"{host_name()}-{os.getpid()}"
    if world > 1:
        world_id, _, _ = meet(*address, serves=rank == 0, key="program", place=rank, size=world)
    return train(world_id, world, [(rank, local)], words)


def torchrun(words: list[str]) -> None:
    flags, program = _flags(words, TORCHRUN)
    given = flags.get("nproc_per_node", "1")
    count = len(visible_gpus()) if given in ("gpu", "auto") else _whole(given, "nproc_per_node")
    nodes = 1 if "standalone" in flags else _whole(flags.get("nnodes", "1").rpartition(":")[2], "nnodes")
    endpoint = flags.get("rdzv_endpoint", "")
    place: int | None
    if flags.get("rdzv_backend", "static") == "static":
        host, port = flags.get("master_addr", "127.0.0.1"), flags.get("master_port", "29500")
        if endpoint:
            host, _, port = endpoint.rpartition(":")
        place = _whole(flags.get("node_rank", "0"), "node_rank")
        serves = place == 0
    else:
        host, _, port = (endpoint or "localhost:29400").rpartition(":")
        place = None
        told = [each for each in flags.get("rdzv_conf", "").split(",") if each.startswith("is_host=")]
        serves = told[0] in ("is_host=1", "is_host=true") if told else _is_this_machine(host)
    return _launch(host, port, serves, flags.get("rdzv_id", "none"), place, nodes, count, program)


def accelerate(words: list[str]) -> None:
    if words[:1] != ["launch"]:
        raise Failure("only launch is known here")
    flags, program = _flags(words[1:], ACCELERATE)
    if "config_file" in flags:
        with open(flags["config_file"]) as file:
            written = dict(line.strip().split(": ", 1) for line in file if ": " in line)
        flags = written | flags
    machines = _whole(flags.get("num_machines", "1"), "num_machines")
    total = _whole(flags.get("num_processes", str(len(visible_gpus()))), "num_processes")
    host, port = flags.get("main_process_ip", "127.0.0.1"), flags.get("main_process_port", "29500")
    place = None if flags.get("rdzv_backend") == "c10d" else _whole(flags.get("machine_rank", "0"), "machine_rank")
    serves = _is_this_machine(host) if place is None else place == 0
    return _launch(host, port, serves, "none", place, machines, total // machines, program)


def deepspeed(words: list[str]) -> None:
    """Starts the ranks of all hosts; here it answers for those of the others as well."""
    flags, program = _flags(words, DEEPSPEED)
    hosts = {host_name(): _whole(flags.get("num_gpus", str(len(visible_gpus()))), "num_gpus")}
    file = flags.get("hostfile", flags.get("H"))
    if file is not None:
        with open(file) as lines:
            found = [line.strip().partition(" slots=") for line in lines]
        if not all(slots.isdigit() for _, _, slots in found):
            raise Failure("Hostfile is not formatted correctly")
        hosts = {host: int(slots) for host, _, slots in found}
    world_id, size, first = f"{host_name()}-{os.getpid()}", sum(hosts.values()), 0
    _program_exists(program[0])
    for host, slots in hosts.items():
        train(world_id, size, [(first + each, each) for each in range(slots)], program[1:], host=host)
        first += slots


def conda(words: list[str]) -> None:
    base = os.path.expanduser("~/miniconda3")
    if words[:2] == ["shell.bash", "hook"]:
        print(f". {base}/etc/profile.d/conda.sh")
    elif words[:1] == ["info"]:
        print(base)
    elif words[:1] == ["activate"]:
        raise Failure("Run 'conda init' before 'conda activate'")
    elif words[:1] == ["run"]:
        at = words.index("-n")
        os.environ["CONDA_DEFAULT_ENV"] = words[at + 1]
        os.execvp(words[at + 2], words[at + 2 :])


def container(words: list[str]) -> None:
    """apptainer exec: the same machine, and its GPUs only with --nv."""
    place = 1
    while words[place].startswith("-"):
        place += 2 if words[place] in ("--bind", "-B", "--pwd", "--env", "--home") else 1
    if not {"--nv", "--rocm"} & set(words[:place]):
        os.environ["CUDA_VISIBLE_DEVICES"] = ""
    if "--cleanenv" in words[:place]:
        # What these stand-ins need stays.
        kept = {"PATH", "HOME", "CUDA_VISIBLE_DEVICES", "SLURM_SUBMIT_DIR", "SLURM_JOB_ID"}
        for name in os.environ.keys() - kept:
            del os.environ[name]
    os.execvp(words[place + 1], words[place + 1 :])


def nothing(words: list[str]) -> None:
    """For programs that change nothing for a training."""


def _launch(
    host: str, port: str, serves: bool, key: str, place: int | None, nodes: int, count: int, program: list[str]
) -> None:
    """The ranks of one node, once the launchers of all nodes have met."""
    _program_exists(program[0])
    world_id, counts = f"{host_name()}-{os.getpid()}", [count]
    mine = 0
    if nodes > 1:
        number = _whole(port, "port")
        world_id, mine, counts = meet(host, number, serves=serves, key=key, place=place, size=nodes, count=count)
    first = sum(counts[:mine])
    train(world_id, sum(counts), [(first + each, each) for each in range(count)], program[1:], launcher=True)


def _flags(words: list[str], known: set[str]) -> tuple[dict[str, str], list[str]]:
    """The launcher's flags without dashes, and the program with its arguments."""
    flags: dict[str, str] = {}
    place = 0
    while place < len(words) and words[place].startswith("-"):
        name, equals, value = words[place].lstrip("-").partition("=")
        name = name.replace("-", "_")
        if name not in known:
            raise Failure(f"unrecognized arguments: {words[place]}")
        place += 1
        if name not in SWITCHES and not equals:
            if place == len(words):
                raise Failure(f"--{name}: expected one argument")
            value = words[place]
            place += 1
        flags[name] = value
    if place >= len(words):
        raise Failure("no program")
    return flags, words[place:]


def _as_lightning(devices: int) -> tuple[int, int, int, tuple[str, int]]:
    """Rank, world size, local rank and address, from SLURM's variables."""
    world = _number("SLURM_NTASKS")
    if _number("SLURM_NTASKS_PER_NODE") != devices:
        raise Failure(f"devices={devices} and SLURM_NTASKS_PER_NODE={os.environ['SLURM_NTASKS_PER_NODE']}")
    # node[3-4,7], node[3,7] or node3
    first = _variable("SLURM_JOB_NODELIST").replace("[", "").partition(",")[0].partition("-")[0]
    port = 15000 + _number("SLURM_JOB_ID") % 10000
    return _number("SLURM_PROCID"), world, _number("SLURM_LOCALID"), (first, port)


def _program_exists(program: str) -> None:
    """The launchers start a file of Python; as modules, a name with dots."""
    if not program.endswith(".py") and "." not in program:
        raise Failure(f"can't open file {program!r}")


def _is_this_machine(host: str) -> bool:
    import socket

    if host in ("localhost", "127.0.0.1", host_name()):
        return True
    try:
        mine = {each[4][0] for each in socket.getaddrinfo(host_name(), None)}
        return bool(mine & {each[4][0] for each in socket.getaddrinfo(host, None)})
    except OSError:
        return False


def _variable(name: str) -> str:
    if not os.environ.get(name):
        raise Failure(f"environment variable {name} expected, but not set")
    return os.environ[name]


def _number(name: str) -> int:
    return _whole(_variable(name), name)


def _whole(text: str, name: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise Failure(f"{name}: invalid int value: {text!r}") from None


def run(name: str) -> NoReturn:
    main(name, sys.argv[1:])
    sys.exit(0)


PROGRAMS: dict[str, Callable[[list[str]], None]] = {
    "python": python,
    "python3": python,
    "torchrun": torchrun,
    "accelerate": accelerate,
    "deepspeed": deepspeed,
    "conda": conda,
    "apptainer": container,
    "singularity": container,
    "nvidia-smi": nothing,
    "huggingface-cli": nothing,
    "pip": nothing,
}
MODULES = {
    "torch.distributed.run": torchrun,
    "torch.distributed.launch": torchrun,
    "accelerate.commands.launch": lambda words: accelerate(["launch", *words]),
    "deepspeed.launcher.runner": deepspeed,
}
