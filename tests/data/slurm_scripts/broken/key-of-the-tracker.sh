#!/bin/bash
#SBATCH --job-name=tracker
#SBATCH --ntasks=1
#SBATCH --gpus=1
#SBATCH --time=4:00:00
#SBATCH --output=tracker-%j.log

OUT=runs/${SLURM_JOB_NAME:-run}-$SLURM_JOB_ID
mkdir -p "$OUT"

if [ -n "${DEBUG:-}" ]; then
    set -x
fi

export PYTHONUNBUFFERED=1 PYTHONFAULTHANDLER=1

test -d figures || mkdir figures

export TRITON_CACHE_DIR=/tmp/triton-$SLURM_JOB_ID
export TORCHINDUCTOR_CACHE_DIR=/tmp/inductor-$SLURM_JOB_ID

export WANDB_API_KEY=0123456789abcdef0123456789abcdef01234567
export WANDB_PROJECT=speech
source ~/envs/audio/bin/activate
python train_tracker.py
