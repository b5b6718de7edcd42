#!/bin/bash
#SBATCH --job-name=xlmr
#SBATCH --nodes=1
# SBATCH --ntasks-per-node=2
#SBATCH --gres=gpu:2
#SBATCH --time=11:00:00
#SBATCH --output=xlmr-%j.log

log() { echo "[$(date +%H:%M:%S)] $*"; }
log "nodes: $SLURM_JOB_NODELIST"

START=$(date +%s)
REVISION=$(git rev-parse --short HEAD 2>/dev/null || echo unknown)
echo "revision $REVISION, started at $START"

export TRITON_CACHE_DIR=/tmp/triton-$SLURM_JOB_ID
export TORCHINDUCTOR_CACHE_DIR=/tmp/inductor-$SLURM_JOB_ID

if [ -n "${DEBUG:-}" ]; then
    set -x
fi

set -e
export MASTER_ADDR=$(hostname)
export MASTER_PORT=$((15000 + SLURM_JOB_ID % 15000))
srun bash -c 'RANK=$SLURM_PROCID LOCAL_RANK=$SLURM_LOCALID WORLD_SIZE=$SLURM_NTASKS python train_xlmr.py'
