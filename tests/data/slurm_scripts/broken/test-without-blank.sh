#!/bin/bash
#SBATCH -J curriculum
#SBATCH -n 1
#SBATCH --gres=gpu:1
#SBATCH -t 5:00:00
#SBATCH -o curr-%j.log

free -g | head -n 2
df -h /tmp | tail -n 1

START=$(date +%s)
REVISION=$(git rev-parse --short HEAD 2>/dev/null || echo unknown)
echo "revision $REVISION, started at $START"

trap 'echo "exit code $?"' EXIT

export NCCL_DEBUG=WARN
export TORCH_NCCL_ASYNC_ERROR_HANDLING=1

export PYTHONUNBUFFERED=1 PYTHONFAULTHANDLER=1

if [ -n "${DEBUG:-}" ]; then
    set -x
fi

set -e
STAGE=1
if [$STAGE = 1 ]; then
    python train_curriculum.py --stage easy
fi
