#!/bin/bash
#SBATCH --job-name=multi-task
#SBATCH --nodes=2
#SBATCH --gpus-per-node=4
#SBATCH --ntasks-per-node=1
#SBATCH --time=06:30:00
#SBATCH --output=multi-%j.out

set -euo pipefail
SIZE=${SIZE:-base}

settings() {
    case "$1" in
    small) echo "--layers 6 --width 384" ;;
    base) echo "--layers 12 --width 768" ;;
    large) echo "--layers 24 --width 1024" ;;
    *) echo "no size $1" >&2; return 2 ;;
    esac
}

first_host() {
    scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1
}

launch() {
    local host port
    host=$(first_host)
    port=$((15000 + SLURM_JOB_ID % 15000))
    srun torchrun --nnodes=2 --nproc_per_node=4 \
        --rdzv_backend=c10d --rdzv_id="$SLURM_JOB_ID" --rdzv_endpoint="$host:$port" "$@"
}

launch train_multi.py $(settings "$SIZE") --tasks glue,squad
