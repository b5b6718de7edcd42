"""The command that starts the workers, and the environment they need. Pure: nothing is started here."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Mapping, Sequence

from dsrun.launch.job import LOOPBACK, Job, Topology
from dsrun.system.packages import own_programs_first

# Accelerate reads these before anything else; ACCELERATE_USE_CPU makes the Trainer drop DeepSpeed in silence.
MISLEADING = ("ACCELERATE_USE_CPU", "ACCELERATE_USE_DEEPSPEED", "ACCELERATE_MIXED_PRECISION", "ACCELERATE_USE_FSDP")


def agent_argv(topology: Topology, *, port: int, module: str, args: Sequence[str]) -> list[str]:
    """`python -m torch.distributed.run` for one machine; `--` keeps it from reading the module's own flags."""
    return [
        sys.executable,
        "-m",
        "torch.distributed.run",
        "--nnodes=1",
        f"--nproc-per-node={topology.workers}",
        f"--master-addr={LOOPBACK}",
        f"--master-port={port}",
        "--module",
        "--",
        module,
        # torchrun substitutes $local_rank and the like in the words of the program (string.Template).
        *(word.replace("$", "$$") for word in args),
    ]


# Options of torch.distributed.run that may stand at the head of a job's program.
HEAD = ("--module", "-m", "--no-python")


def run_arguments(job: Job, *, attempt: int, port: int) -> list[str]:
    """The words for torch.distributed.run: one attempt of `job` on this machine, with the rendezvous at `port`.

    Restarting is the supervisor's business. Each attempt has a rendezvous of its own name, so that a rank left over
    from an earlier one, on a node that was cut off, meets nobody.
    """
    head = list(itertools.takewhile(lambda word: word in HEAD, job.program))
    entry, *words = job.program[len(head) :]
    return [
        f"--nnodes={job.nnodes}",
        f"--node-rank={job.node_rank}",
        f"--nproc-per-node={job.topology.workers}",
        f"--master-addr={job.host}",
        f"--master-port={port}",
        f"--rdzv-id=attempt-{attempt}",
        "--max-restarts=0",
        "--monitor-interval=0.1",
        *head,
        "--",
        # torchrun substitutes in what follows the interpreter, which without one is the program's own words only.
        entry if "--no-python" in head else entry.replace("$", "$$"),
        *(word.replace("$", "$$") for word in words),
    ]


def run_command(arguments: Sequence[str]) -> list[str]:
    """The command of a new interpreter that runs torch.distributed.run."""
    return [sys.executable, "-m", "torch.distributed.run", *arguments]


def worker_environment(topology: Topology, environ: Mapping[str, str], *, debug: bool) -> dict[str, str | None]:
    """The variables to set for the workers (None: to remove). What the user has set stays as it is."""
    wanted: dict[str, str] = {
        # Forked data loader workers would otherwise deadlock or warn once a tokenizer has used its threads.
        "TOKENIZERS_PARALLELISM": "false",
        "OMP_NUM_THREADS": str(topology.threads if topology.device == "cpu" else max(1, topology.threads // 2)),
    }
    if topology.device == "cpu":
        # gloo would look its own host name up in the DNS, ten seconds a peer where there is none.
        wanted |= {"DS_ACCELERATOR": "cpu", "GLOO_SOCKET_IFNAME": "lo"}
    else:
        wanted["PYTORCH_CUDA_ALLOC_CONF"] = "expandable_segments:True"
    if debug:
        wanted |= {"TORCH_DISTRIBUTED_DEBUG": "DETAIL", "NCCL_DEBUG": "INFO"}
    changes: dict[str, str | None] = {name: value for name, value in wanted.items() if name not in environ}
    changes |= own_programs_first(environ)
    return changes | {name: None for name in MISLEADING if name in environ}
