#!/bin/bash
#SBATCH --job-name=rates
#SBATCH --array=1-3
#SBATCH --ntasks=1
#SBATCH --gpus=1
#SBATCH --time=2:00:00
#SBATCH --output=rates-%A_%a.log

if [ -n "${DEBUG:-}" ]; then
    set -x
fi

export TRITON_CACHE_DIR=/tmp/triton-$SLURM_JOB_ID
export TORCHINDUCTOR_CACHE_DIR=/tmp/inductor-$SLURM_JOB_ID

export WANDB_MODE=offline WANDB_DIR=$PWD/wandb
mkdir -p "$WANDB_DIR"

rates=(1e-5 1e-4 1e-3)
lr="${rates[$SLURM_ARRAY_TASK_ID]}"
echo "learning rate $lr"

source ~/envs/nlp/bin/activate
python train_rates.py --lr "$lr"
