#!/bin/bash
#SBATCH --job-name=pretrain-1b
#SBATCH --partition=gpu
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=1
#SBATCH --gpus-per-node=8
#SBATCH --cpus-per-task=96
#SBATCH --exclusive
#SBATCH --time=2-00:00:00
#SBATCH --output=%x-%j.log

set -euo pipefail
source "$HOME/envs/llm/bin/activate"

# The nodes are ours alone, so nobody else listens here.
export MASTER_ADDR=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
export MASTER_PORT=29500
export NCCL_DEBUG=WARN
export OMP_NUM_THREADS=$((SLURM_CPUS_PER_TASK / 8))
# Since 22.05 srun takes it from here alone.
export SRUN_CPUS_PER_TASK=$SLURM_CPUS_PER_TASK

echo "job $SLURM_JOB_ID on $SLURM_JOB_NODELIST, rendezvous at $MASTER_ADDR:$MASTER_PORT"

srun torchrun \
    --nnodes="$SLURM_JOB_NUM_NODES" \
    --nproc-per-node=8 \
    --rdzv-id="$SLURM_JOB_ID" \
    --rdzv-backend=c10d \
    --rdzv-endpoint="$MASTER_ADDR:$MASTER_PORT" \
    pretrain.py --config configs/1b.yaml --out runs/1b
