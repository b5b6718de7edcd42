#!/bin/bash
#SBATCH --job-name=layout
#SBATCH --partition=gpu
#SBATCH --nodes=1
#SBTACH --gpus-per-node=2
#SBATCH --time=08:00:00
#SBATCH --output=layout-%j.log

if [ -n "${DEBUG:-}" ]; then
    set -x
fi

trap 'echo "exit code $?"' EXIT

cat <<INFO
job:    $SLURM_JOB_ID
nodes:  $SLURM_JOB_NODELIST
folder: $PWD
INFO

export NCCL_DEBUG=WARN
export TORCH_NCCL_ASYNC_ERROR_HANDLING=1

# -----------------------------------------------------------------
# settings
# -----------------------------------------------------------------

source ~/envs/layout/bin/activate
torchrun --standalone --nproc_per_node=2 train_layout.py --docs rvl-cdip
