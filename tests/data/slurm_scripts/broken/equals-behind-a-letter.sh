#!/bin/bash
#SBATCH -J equals
#SBATCH -N=1
#SBATCH --gres=gpu:2
#SBATCH -t 3:00:00
#SBATCH -o equals-%j.log

cd "$SLURM_SUBMIT_DIR" || exit 1

# -----------------------------------------------------------------
# settings
# -----------------------------------------------------------------

START=$(date +%s)
REVISION=$(git rev-parse --short HEAD 2>/dev/null || echo unknown)
echo "revision $REVISION, started at $START"

export PYTHONUNBUFFERED=1 PYTHONFAULTHANDLER=1

export TRITON_CACHE_DIR=/tmp/triton-$SLURM_JOB_ID
export TORCHINDUCTOR_CACHE_DIR=/tmp/inductor-$SLURM_JOB_ID

if [ -n "${DEBUG:-}" ]; then
    set -x
fi

source ~/envs/nlp/bin/activate
torchrun --standalone --nproc_per_node=2 train_equals.py
