#!/bin/bash
#SBATCH --job-name=mamba
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=1
#SBATCH --gpus-per-node=4
#SBATCH --exclusive
#SBATCH --time=30:00:00
#SBATCH --output=mamba-%j.log

checks=0
while [ $checks -lt 3 ] && [ ! -w "$PWD" ]; do
    sleep 1
    checks=$((checks + 1))
done

set -euo pipefail
MASTER=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)

srun torchrun \
    --nnodes=$SLURM_NNODES \
    --nproc_per_node=4 \
    --rdzv_backend=c10d \
    --rdzv_id=$SLURM_JOB_ID \
    --master_addr=$MASTER --master_port=29501 \
    train_mamba.py --d-model 1024
