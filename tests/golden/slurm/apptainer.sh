#!/bin/bash
#SBATCH --job-name=my_train
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=1
#SBATCH --gpus-per-node=2
#SBATCH --signal=B:USR1@180
#SBATCH --requeue
#SBATCH --open-mode=append
# Rendered by dsrun VERSION
# `dsrun render-slurm --show-template` prints the template; signals, waiting and requeueing are functions of job.bash.
# shellcheck disable=SC1090,SC1091,SC2034,SC2154
set -u -o pipefail
source /opt/dsrun/share/job.bash || exit 4
export DSRUN_GPUS=2

nproc=2 cpu_only='' trains='' supervised=''
requeue=yes max_requeues=3 max_requeues_unseen=20 saving_time=150
rdzv_backend=static gpus_per_node=2 join_timeout=''
# Run by the workers' Python on each node, before they start.
gpu_check=$(cat <<'PYTHON'
"""How many GPUs torch sees here. Also the text of a program for other Pythons, so that it imports nothing of dsrun."""

import os
import sys
from collections.abc import Mapping

NO_DEVICES = ("", "-1", "NoDevFiles")
"""Values of CUDA_VISIBLE_DEVICES that show none."""


def torch_gpus(*, other_kinds: bool = False) -> tuple[int, str]:
    """GPUs that torch can use, with `other_kinds` any accelerators; its version, and what it says if there are none."""
    import torch

    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    accelerator = getattr(torch, "accelerator", None)
    if not count and other_kinds and accelerator and accelerator.is_available():
        count = accelerator.device_count()
    reason = f"CUDA_VISIBLE_DEVICES={os.environ.get('CUDA_VISIBLE_DEVICES', '(not set)')}"
    if not count:
        try:
            torch.cuda.init()
        except Exception as error:
            reason = str(error).strip().partition("\n")[0] or reason
    return count, f"torch {torch.__version__}: {reason}"


def wanted(expected: int, environ: Mapping[str, str]) -> int:
    """`expected`, or fewer where somebody chose so by naming fewer than SLURM and device plugins do, which name all; of
    MIG instances a process sees one."""
    for variable in ("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES"):
        named = [each.strip() for each in environ.get(variable, "").split(",") if each.strip()]
        if named and named[0] not in NO_DEVICES:
            expected = min(expected, 1 if named[0].startswith("MIG-") else len(named))
    return expected


def too_few(count: int, expected: int, words: str) -> str:
    """The sentence about a node that shows `count` GPUs of `expected`."""
    node = os.environ.get("SLURMD_NODENAME") or os.uname().nodename
    return f"{node}: torch sees {count} of the {expected} GPUs that this job has on each node ({words})"


if __name__ == "__main__":
    try:
        found, said = torch_gpus(other_kinds=True)
    except ImportError:
        sys.exit()  # a program of another kind
    if found < (least := wanted(int(sys.argv[1]), os.environ)):
        sys.exit(print(too_few(found, least, said), file=sys.stderr) or 4)
PYTHON
)
start_job --per-job "$PWD"/runs/my_train

srun --export=ALL --kill-on-bad-exit=1 "${cpus[@]}" \
    bash -c "$on_node" dsrun-node \
    apptainer exec --nv --bind="$PWD" --bind="$DSRUN_OUTPUT" --pwd="$PWD" --bind=/data '/images/my train.sif' python -m torch.distributed.run \
    --nnodes="$SLURM_JOB_NUM_NODES" --nproc-per-node=2 --max-restarts=0 \
    --rdzv-backend=static --rdzv-endpoint="$endpoint" --rdzv-id="$job-$restart" \
    -- my_train.py --x 1 $'it\'s $$HOME' &
finish "$!"
