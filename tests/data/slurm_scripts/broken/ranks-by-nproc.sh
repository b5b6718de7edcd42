#!/bin/bash
#SBATCH --job-name=tabular
#SBATCH --nodes=1
#SBATCH --gpus-per-node=2
#SBATCH --cpus-per-gpu=4
#SBATCH --time=2:00:00
#SBATCH --output=tabular-%j.log

cd "$SLURM_SUBMIT_DIR" || exit 1

if [ -n "${DEBUG:-}" ]; then
    set -x
fi

export NCCL_IB_DISABLE=0
export NCCL_SOCKET_NTHREADS=4
export FI_PROVIDER=efa

export WANDB_MODE=offline WANDB_DIR=$PWD/wandb
mkdir -p "$WANDB_DIR"

export NCCL_DEBUG=WARN
export TORCH_NCCL_ASYNC_ERROR_HANDLING=1

N=$(nproc)
torchrun --standalone --nproc_per_node=$N train_tabular.py --trees none
