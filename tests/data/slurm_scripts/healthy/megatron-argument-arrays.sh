#!/usr/bin/env bash
#SBATCH --job-name=gpt-345m
#SBATCH --partition=boost
#SBATCH --nodes=4
#SBATCH --ntasks-per-node=1
#SBATCH --gpus-per-node=2
#SBATCH --time=24:00:00
#SBATCH --output=gpt-%j.txt

set -euo pipefail

readonly GPUS_PER_NODE=2
HOSTS=($(scontrol show hostnames "$SLURM_JOB_NODELIST"))

DISTRIBUTED_ARGS=(
    --nproc_per_node "$GPUS_PER_NODE"
    --nnodes "${#HOSTS[@]}"
    --rdzv_backend c10d
    --rdzv_id "gpt-$SLURM_JOB_ID"
    --rdzv_endpoint "${HOSTS[0]}:$((15000 + SLURM_JOB_ID % 15000))"
)
MODEL_ARGS=(
    --num-layers 24
    --hidden-size 1024
    --num-attention-heads 16
    --seq-length 1024
    --micro-batch-size 8
    --global-batch-size 512
)
DATA_ARGS=(
    --data-path data/wiki_text_document
    --vocab-file data/gpt2-vocab.json
    --split 949,50,1
)
OUTPUT_ARGS=(--save checkpoints/345m --save-interval 1000 --log-interval 100)

srun torchrun "${DISTRIBUTED_ARGS[@]}" pretrain_gpt.py \
    "${MODEL_ARGS[@]}" \
    "${DATA_ARGS[@]}" \
    "${OUTPUT_ARGS[@]}" \
    --distributed-backend nccl --bf16
