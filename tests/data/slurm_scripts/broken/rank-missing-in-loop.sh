#!/bin/bash
#SBATCH --job-name=folds
#SBATCH --nodes=1
#SBATCH --ntasks=2
#SBATCH --gpus-per-node=2
#SBATCH --time=08:00:00
#SBATCH --output=folds-%j.out

test -d figures || mkdir figures

export TRITON_CACHE_DIR=/tmp/triton-$SLURM_JOB_ID
export TORCHINDUCTOR_CACHE_DIR=/tmp/inductor-$SLURM_JOB_ID

readonly PROJECT=${PROJECT:-lab}
echo "project $PROJECT"

set -euo pipefail
export MASTER_ADDR=localhost
export LAUNCH_MODE=slurm

for fold in 0 1; do
    export MASTER_PORT=$((15000 + (SLURM_JOB_ID + fold) % 15000))
    echo "fold $fold"
    srun python train_fold.py --fold $fold --ddp "$@"
done
