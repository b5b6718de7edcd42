#!/bin/bash
#SBATCH --job-name=t5-small
#SBATCH --ntasks=1
#SBATCH --gpus=2
#SBATCH --time=120
#SBATCH --output=t5_%j.out

export PYTHONUNBUFFERED=1 PYTHONFAULTHANDLER=1

export NCCL_DEBUG=WARN
export TORCH_NCCL_ASYNC_ERROR_HANDLING=1

for v in SLURM_JOB_ID SLURM_JOB_NODELIST SLURM_JOB_NAME; do
    printf '%s=%s\n' "$v" "${!v}"
done

export NCCL_IB_DISABLE=0
export NCCL_SOCKET_NTHREADS=4
export FI_PROVIDER=efa

# Needs no activation: conda itself starts the program in the environment.
conda run --no-capture-output -n t5 \
    torchrun --standalone --nproc-per-node=gpu train_t5.py --lr 1e-3 --epochs 10
