#!/bin/bash
#SBATCH -J pegasus
#SBATCH -N 2
#SBATCH --ntasks-per-node=1
#SBATCH --gpus-per-node=2
#SBATCH -t 12:00:00
#SBATCH -o peg-%j.log

export CUDA_DEVICE_MAX_CONNECTIONS=1
export TOKENIZERS_PARALLELISM=false

OUT=runs/${SLURM_JOB_NAME:-run}-$SLURM_JOB_ID
mkdir -p "$OUT"

export HF_HOME=$HOME/cache/huggingface
export HF_DATASETS_OFFLINE=1
export TRANSFORMERS_OFFLINE=1

# The logs of old runs are kept for a month, see the wiki of the group.
# Questions: the channel of the cluster.

trap 'echo "exit code $?"' EXIT

export H=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
export P=$((15000 + SLURM_JOB_ID % 15000))
srun torchrun --nnodes 2 --nproc_per_node 2 --node_rank '$SLURM_NODEID' \
    --master_addr $H --master_port $P train_pegasus.py
