#!/bin/bash
#SBATCH --job-name=unpack
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=1
#SBATCH --gpus-per-node=4
#SBATCH --time=6:00:00
#SBATCH --output=unpack_%j.out

export MASTER_ADDR=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
export MASTER_PORT=$((17000 + SLURM_JOB_ID % 9000))

tar -xf "$HOME/imagenet.tar" -C "$SLURM_TMPDIR"
srun torchrun --nnodes=2 --nproc_per_node=4 --rdzv_id="$SLURM_JOB_ID" \
    --rdzv_backend=c10d --rdzv_endpoint="$MASTER_ADDR:$MASTER_PORT" train_in.py --data "$SLURM_TMPDIR/imagenet"
