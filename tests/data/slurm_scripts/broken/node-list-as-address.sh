#!/bin/bash
#SBATCH --job-name=ssd
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=2
#SBATCH --gpus-per-node=2
#SBATCH --time=10:00:00
#SBATCH --output=ssd-%j.log

# The logs of old runs are kept for a month, see the wiki of the group.
# Questions: the channel of the cluster.

OUT=runs/${SLURM_JOB_NAME:-run}-$SLURM_JOB_ID
mkdir -p "$OUT"

START=$(date +%s)
REVISION=$(git rev-parse --short HEAD 2>/dev/null || echo unknown)
echo "revision $REVISION, started at $START"

export MASTER_ADDR=$SLURM_JOB_NODELIST
export MASTER_PORT=$((15000 + SLURM_JOB_ID % 15000))
export WORLD_SIZE=$SLURM_NPROCS
srun bash -c 'RANK=$SLURM_PROCID python train_ssd.py --voc'
