#!/bin/bash
#SBATCH -J grid
#SBATCH -a 1-3
#SBATCH -N 1
#SBATCH -n 1
#SBATCH --gres=gpu:2
#SBATCH -t 6:00:00
#SBATCH -o grid.%A.%a.log

# -----------------------------------------------------------------
# settings
# -----------------------------------------------------------------

if [ -n "${DEBUG:-}" ]; then
    set -x
fi

set -euo pipefail
cat >grid-$SLURM_ARRAY_TASK_ID.tsv <<TABLE
1e-4 32
3e-4 64
1e-3 128
TABLE
read -r LR BATCH < <(sed -n "${SLURM_ARRAY_TASK_ID}p" grid-$SLURM_ARRAY_TASK_ID.tsv)
echo "task $SLURM_ARRAY_TASK_ID: lr=$LR batch=$BATCH"

srun torchrun --standalone --nproc_per_node=$SLURM_GPUS_ON_NODE tune.py --lr $LR --batch $BATCH
