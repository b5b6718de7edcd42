#!/bin/bash
#SBATCH --job-name=summaries
#SBATCH --gres=gpu:2
#SBATCH --time=14:00:00
#SBATCH --output=summaries-%j.log

RUN=cnn-dailymail
#SBATCH --ntasks-per-node=2

if [ -n "${DEBUG:-}" ]; then
    set -x
fi

readonly PROJECT=${PROJECT:-lab}
echo "project $PROJECT"

export PYTHONUNBUFFERED=1 PYTHONFAULTHANDLER=1

export MASTER_ADDR=$(hostname)
export MASTER_PORT=$((15000 + SLURM_JOB_ID % 15000))
srun bash -c 'RANK=$SLURM_PROCID WORLD_SIZE=$SLURM_NTASKS python train_sum.py --rouge' - "$RUN"
