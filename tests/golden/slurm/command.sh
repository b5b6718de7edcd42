#!/bin/bash
#SBATCH --job-name=tool
#SBATCH --nodes=1
#SBATCH --ntasks-per-node=1
#SBATCH --gpus-per-node=1
#SBATCH --time=1
#SBATCH --no-requeue
#SBATCH --open-mode=append
# Rendered by dsrun VERSION
# `dsrun render-slurm --show-template` prints the template; signals, waiting and requeueing are functions of job.bash.
# shellcheck disable=SC1090,SC1091,SC2034,SC2154
set -u -o pipefail
source /opt/dsrun/share/job.bash || exit 4
export DSRUN_GPUS=1
export PATH=/opt/dsrun/bin:"$PATH"

nproc=1 cpu_only='' trains='' supervised=''
requeue='' max_requeues=3 max_requeues_unseen=20 saving_time=''
rdzv_backend=static gpus_per_node=1 join_timeout=''
start_job --per-job "$PWD"/runs/tool

srun --export=ALL --kill-on-bad-exit=1 "${cpus[@]}" \
    bash -c "$on_node" dsrun-node \
    /opt/dsrun/bin/python -m torch.distributed.run \
    --nnodes="$SLURM_JOB_NUM_NODES" --nproc-per-node=1 --max-restarts=0 \
    --rdzv-backend=static --rdzv-endpoint="$endpoint" --rdzv-id="$job-$restart" \
    --no-python -- ./tool 'a b' &
finish "$!"
