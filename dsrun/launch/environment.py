"""The command of the agent, and the environment of agent and workers: what torch, NCCL and gloo need.

Pure, but for `has_libuv`, which reads torch's files without importing it."""

import itertools
import re
import sys
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from dsrun.datafiles import evaluate, toml_beside
from dsrun.errors import UsageError
from dsrun.launch.context import LocalWorkers, TrainingJob
from dsrun.launch.program import through_macros
from dsrun.runs.folder import RunFolder
from dsrun.system import variables
from dsrun.system.host import own_programs_first
from dsrun.system.terminal.secrets import MASK, is_secret_name, without_tokens

# Options of torch.distributed.run that may stand at the head of a job's program.
HEAD = ("--module", "-m", "--no-python")


def run_arguments(job: TrainingJob, *, attempt: int, port: int, logs: Path | None = None) -> list[str]:
    """The words for torch.distributed.run: one attempt of `job` on this machine, with the rendezvous at `port`.

    `logs` is a folder for what it writes itself, by default one in TMPDIR that stays there when it is killed.
    Restarting is the supervisor's business. Each attempt has a rendezvous of its own name, so that a rank left over
    from an earlier one, on a node that was cut off, meets no other."""
    head = list(itertools.takewhile(lambda word: word in HEAD, job.program))
    entry, *arguments = job.program[len(head) :]
    return [
        f"--nnodes={job.nnodes}",
        f"--node-rank={job.node_rank}",
        f"--nproc-per-node={job.topology.workers}",
        f"--master-addr={job.host}",
        f"--master-port={port}",
        f"--rdzv-id=attempt-{attempt}",
        "--max-restarts=0",
        "--monitor-interval=0.1",
        *(() if logs is None else (f"--log-dir={logs}",)),
        *head,
        # Or argparse takes the program's own --d for an abbreviation of one of torch.distributed.run's options.
        "--",
        # torchrun substitutes in what follows the interpreter, which without one is the program's own words only
        # (macros.substitute in torch.distributed.elastic.utils.api, a string.Template).
        entry if "--no-python" in head else through_macros(entry),
        *map(through_macros, arguments),
    ]


def run_command(arguments: Sequence[str]) -> list[str]:
    """The command of a new interpreter that runs torch.distributed.run."""
    return [sys.executable, "-m", "torch.distributed.run", *arguments]


def worker_environment(topology: LocalWorkers, environ: Mapping[str, str], *, debug: bool) -> dict[str, str | None]:
    """The variables to set for the workers (None: to remove). What the user has set stays as it is."""
    names = {"is_cpu": topology.device == "cpu", "threads": topology.threads, "debug": debug}
    changes: dict[str, str | None] = {**_wanted("workers", environ, **names)}
    changes |= own_programs_first(environ)
    return changes | {name: None for name in variables.MISLEADING if name in environ}


def _wanted(table: str, environ: Mapping[str, str], **names: Any) -> dict[str, str]:
    """The variables of a table of environment.toml that have a value, but for what the user has set."""
    found = {name: evaluate(value, names) for name, value in toml_beside(__file__)[table].items()}
    return {name: str(value) for name, value in found.items() if value is not None and name not in environ}


def launch_environment(
    topology: LocalWorkers,
    environ: Mapping[str, str],
    *,
    run: Path,
    external: bool,
    debug: bool,
    nodes: int = 1,
    node: int = 0,
    network: Mapping[str, str] | None = None,
    libuv: bool = True,
) -> dict[str, str | None]:
    """The variables to set (None: to remove) for agent and workers; what the user has set stays as it is.

    `run` is the run folder, `node` the number of this one of `nodes`, `network` what `network_variables` found for
    several nodes, `libuv` whether torch has it."""
    changes = worker_environment(topology, environ, debug=debug)
    if external:
        # dsrun's own worker must not be misled by them; a user's script may be meant by them.
        changes = {name: value for name, value in changes.items() if name not in variables.MISLEADING}
        # Scripts written for other launchers read it; torch's agent sets GROUP_RANK, which means the same.
        changes["NODE_RANK"] = str(node)
        if environ.get("SLURM_JOB_GPUS") or environ.get("ROCR_VISIBLE_DEVICES"):
            # GPUs that NVIDIA's driver does not list, such as AMD's; the program may know how to use them.
            changes.pop("DS_ACCELERATOR", None)
    if nodes > 1:
        # For one machine alone.
        changes.pop("GLOO_SOCKET_IFNAME", None)
        changes |= {name: value for name, value in (network or {}).items() if name not in environ}
    changes |= _wanted("launch", environ, is_cuda=topology.device == "cuda", libuv=libuv, logs=RunFolder(run).logs)
    return changes | {variables.OUTPUT: str(run)}


def network_variables(
    met_from: str | None, interfaces: Mapping[str, Sequence[str]], own_name: Sequence[str]
) -> dict[str, str]:
    """The variables that gloo and NCCL need on a machine of several, where they would choose another network than the
    one on which the nodes have met.

    `met_from` is the address of this machine on that way, `interfaces` are the addresses by interface, `own_name` those
    that its own name has: gloo takes the first of these, on Debian 127.0.1.1. NCCL takes InfiniBand's first, and then
    whatever is not `lo` or `docker*`; its variable is set only where that is a choice."""
    name = next((name for name, own in interfaces.items() if met_from in own), None)
    if met_from is None or name is None:
        return {}
    found = {}
    if met_from not in own_name[:1]:
        found["GLOO_SOCKET_IFNAME"] = name
    outward = [each for each in interfaces if not each.startswith(("lo", "docker"))]
    if name in outward and len(outward) > 1 and not any(each.startswith("ib") for each in outward):
        found["NCCL_SOCKET_IFNAME"] = f"={name}"
    return found


def has_libuv() -> bool:
    """Whether the torch of this Python was built with libuv; True where that cannot be seen."""
    spec = find_spec("torch")
    if spec is None or spec.origin is None:
        return True
    return library_has_libuv(Path(spec.origin).parent / "lib" / "libtorch_cpu.so")


def library_has_libuv(library: Path) -> bool:
    """Whether a libtorch_cpu.so contains libuv (as PyTorch's own do) or is linked with it (as conda-forge's).

    Reads the tables of the dynamic linker alone, a few pages of its 400 MB. True for a file that cannot be read."""
    from elftools.common.exceptions import ELFError
    from elftools.elf.dynamic import DynamicSection
    from elftools.elf.elffile import ELFFile
    from elftools.elf.hash import ELFHashSection, GNUHashSection

    try:
        with library.open("rb") as file:
            elf = ELFFile(file)
            dynamic = elf.get_section_by_name(".dynamic")
            if not isinstance(dynamic, DynamicSection):
                return True
            needed = [str(getattr(tag, "needed", "")) for tag in dynamic.iter_tags("DT_NEEDED")]
            if any(name.startswith("libuv.") for name in needed):
                return True
            for name in (".gnu.hash", ".hash"):
                table = elf.get_section_by_name(name)
                if isinstance(table, GNUHashSection | ELFHashSection):
                    return table.get_symbol("uv_loop_init") is not None
    except (OSError, ELFError):
        return True
    return True


ENVIRONMENT_FILE = ".deepspeed_env"
"""NAME=VALUE lines in the working folder or in the home folder, as DeepSpeed's own launcher reads them."""

# What a login shell on the other machine cannot know. On ssh's command line everybody there could read them, so that
# only those without which Python does not start stand on it.
ON_THE_COMMAND_LINE = ("PATH", "LD_LIBRARY_PATH", "PYTHONPATH", "PYTHONHOME")
_LINE = re.compile(r"(?:export\s+)?([A-Za-z_][A-Za-z0-9_]*)=(.*)")


def forwarded_variables(environ: Mapping[str, str], more: Mapping[str, str]) -> dict[str, str]:
    """The variables of `environ` that matter to training, and `more` from environment files, which win.

    CUDA_VISIBLE_DEVICES is not among them: it numbers the GPUs of this machine."""
    table = toml_beside(__file__)["forwarded"]
    known, beginnings = (*table["names"], *ON_THE_COMMAND_LINE), tuple(table["prefixes"])
    wanted = {name for name in environ if name in known or name.startswith(beginnings)}
    return {name: environ[name] for name in wanted - variables.OF_THIS_SUPERVISOR} | dict(more)


def parse_environment_file(text: str, where: str) -> dict[str, str]:
    """NAME=VALUE lines; `#` begins a remark, quotes around a value are taken off. Raises UsageError with the line."""
    found = {}
    for number, line in enumerate(text.splitlines(), 1):
        entry = line.strip()
        if not entry or entry.startswith("#"):
            continue
        match = _LINE.fullmatch(entry)
        if not match:
            secret = any(map(is_secret_name, re.findall(r"\w+", entry.upper())))
            shown = MASK if secret else without_tokens(repr(entry))
            raise UsageError(f"{where}:{number}: {shown} is not NAME=VALUE", fix="one variable a line")
        name, value = match[1], match[2].strip()
        if len(value) > 1 and value[0] == value[-1] and value[0] in "\"'":
            value = value[1:-1]
        found[name] = value
    return found
