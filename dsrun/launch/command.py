"""The command that starts the workers, and the environment they need. Pure: nothing is started here."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence

from dsrun.launch.topology import Topology
from dsrun.system.search_path import own_programs_first

LOOPBACK = "127.0.0.1"

# Accelerate reads these before anything else; ACCELERATE_USE_CPU makes the Trainer drop DeepSpeed in silence.
MISLEADING = (
    "ACCELERATE_USE_CPU",
    "ACCELERATE_USE_DEEPSPEED",
    "ACCELERATE_MIXED_PRECISION",
    "ACCELERATE_USE_FSDP",
)


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


def worker_environment(
    topology: Topology, environ: Mapping[str, str], *, debug: bool
) -> dict[str, str | None]:
    """The variables to set for the workers (None: to remove). What the user has set stays as it is."""
    wanted: dict[str, str] = {
        # Forked data loader workers would otherwise deadlock or warn once a tokenizer has used its threads.
        "TOKENIZERS_PARALLELISM": "false",
        "OMP_NUM_THREADS": str(
            topology.threads if topology.device == "cpu" else max(1, topology.threads // 2)
        ),
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
