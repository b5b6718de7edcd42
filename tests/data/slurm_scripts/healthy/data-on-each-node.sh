#!/bin/bash
#SBATCH --job-name=spread
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=1
#SBATCH --gpus-per-node=4
#SBATCH --time=6:00:00
#SBATCH --output=spread_%j.out

export MASTER_ADDR=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
export MASTER_PORT=$((17000 + SLURM_JOB_ID % 9000))
scratch=/tmp/spread-$SLURM_JOB_ID

srun mkdir -p "$scratch"
srun cp "$0" "$scratch/data"
srun torchrun --nnodes="$SLURM_NNODES" --nproc_per_node="$SLURM_GPUS_ON_NODE" --rdzv_id="$SLURM_JOB_ID" \
    --rdzv_backend=c10d --rdzv_endpoint="$MASTER_ADDR:$MASTER_PORT" train_in.py --data "$scratch/data"
srun rm -rf "$scratch"
