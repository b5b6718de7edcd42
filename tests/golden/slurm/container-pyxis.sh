#!/bin/bash
#SBATCH --job-name=my_train
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=1
#SBATCH --gpus-per-node=8
#SBATCH --signal=B:USR1@180
#SBATCH --requeue
#SBATCH --open-mode=append
# Rendered by dsrun VERSION
# `dsrun render-slurm --show-template` prints the template; signals, waiting and requeueing are functions of job.bash.
# shellcheck disable=SC1090,SC1091,SC2034,SC2154
set -u -o pipefail
source /opt/dsrun/share/job.bash || exit 4
need HF_TOKEN
[ -v NCCL_NET ] || export NCCL_NET=IB
[ -v NCCL_IB_DISABLE ] || export NCCL_IB_DISABLE=0
[ -v NCCL_IB_TIMEOUT ] || export NCCL_IB_TIMEOUT=22

nproc=8 cpu_only='' trains='' supervised=''
requeue=yes max_requeues=20 saving_time=150
rdzv_backend=static gpus_per_node=8 join_timeout=''
start_job --per-job "$PWD"/runs/my_train

srun --export=ALL --kill-on-bad-exit=1 "${cpus[@]}" \
    --container-image='nvcr.io#nvidia/pytorch:25.08-py3' \
    --container-mounts="$PWD:$PWD,$DSRUN_OUTPUT:$DSRUN_OUTPUT",/data:/data,'/my models:/models:ro' \
    --container-workdir="$PWD" \
    --container-env=HF_TOKEN \
    bash -c "$on_node" dsrun-node \
    python -m torch.distributed.run \
    --nnodes="$SLURM_JOB_NUM_NODES" --nproc-per-node=8 --max-restarts=0 \
    --rdzv-backend=static --rdzv-endpoint="$endpoint" --rdzv-id="$job-$restart" \
    -- my_train.py --x 1 $'it\'s $$HOME' &
finish "$!"
