#!/bin/bash
#SBATCH -J whisper-ft
#SBATCH -N 2
#SBATCH --tasks-per-node=1
#SBATCH --gres=gpu:a100:2
#SBATCH -t 1-00:00
#SBATCH -o whisper-%j.log

export WANDB_MODE=offline WANDB_DIR=$PWD/wandb
mkdir -p "$WANDB_DIR"

# The logs of old runs are kept for a month, see the wiki of the group.
# Questions: the channel of the cluster.

set -euo pipefail
mapfile -t hosts < <(scontrol show hostnames "$SLURM_JOB_NODELIST")

launch=(accelerate launch
    --num_machines "$SLURM_JOB_NUM_NODES"
    --num_processes 4
    --rdzv_backend c10d
    --main_process_ip "${hosts[0]}"
    --main_process_port "$((16000 + SLURM_JOB_ID % 16000))")
args=(--language tr --batch 16)
args+=(--steps 5000 --fp16)

srun "${launch[@]}" train_whisper.py "${args[@]}"
