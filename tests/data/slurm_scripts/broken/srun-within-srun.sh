#!/bin/bash
#SBATCH -J nest
#SBATCH -N 2
#SBATCH --ntasks-per-node=1
#SBATCH --gpus-per-node=2
#SBATCH -t 3:00:00
#SBATCH -o nest-%j.log

OUT=runs/${SLURM_JOB_NAME:-run}-$SLURM_JOB_ID
mkdir -p "$OUT"

export PYTHONUNBUFFERED=1 PYTHONFAULTHANDLER=1

export WANDB_MODE=offline WANDB_DIR=$PWD/wandb
mkdir -p "$WANDB_DIR"

cat <<INFO
job:    $SLURM_JOB_ID
nodes:  $SLURM_JOB_NODELIST
folder: $PWD
INFO

export CUDA_DEVICE_MAX_CONNECTIONS=1
export TOKENIZERS_PARALLELISM=false

M=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
FLAGS="--nnodes=2 --nproc_per_node=2 --rdzv_backend=c10d --rdzv_id=$SLURM_JOB_ID"
srun bash -c "srun torchrun $FLAGS --rdzv_endpoint=$M:$((15000 + SLURM_JOB_ID % 15000)) train_nest.py"
