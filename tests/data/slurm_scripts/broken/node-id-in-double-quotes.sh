#!/bin/bash
#SBATCH --job-name=roberta
#SBATCH --partition=a100
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=1
#SBATCH --gpus-per-node=4
#SBATCH --time=1-00:00:00
#SBATCH --output=roberta-%j.out

set -euo pipefail
. "$HOME/miniconda3/etc/profile.d/conda.sh"
conda activate fairseq

MASTER=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
PORT=$((28000 + SLURM_JOB_ID % 1000))

srun bash -c "torchrun \
    --nnodes=2 --nproc_per_node=4 \
    --node_rank=$SLURM_NODEID \
    --master_addr=$MASTER --master_port=$PORT \
    train_roberta.py --arch roberta_large --fp16"
