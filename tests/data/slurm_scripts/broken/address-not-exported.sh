#!/bin/bash
#SBATCH --job-name=wide
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=2
#SBATCH --gpus-per-node=2
#SBATCH --time=12:00:00
#SBATCH --output=wide-%j.log

log() { echo "[$(date +%H:%M:%S)] $*"; }
log "nodes: $SLURM_JOB_NODELIST"

# -----------------------------------------------------------------
# settings
# -----------------------------------------------------------------

OUT=runs/${SLURM_JOB_NAME:-run}-$SLURM_JOB_ID
mkdir -p "$OUT"

export NCCL_DEBUG=WARN
export TORCH_NCCL_ASYNC_ERROR_HANDLING=1

MASTER_ADDR=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
export MASTER_PORT=$((15000 + SLURM_JOB_ID % 15000))
export WORLD_SIZE=$SLURM_NTASKS

srun bash -c 'export RANK=$SLURM_PROCID LOCAL_RANK=$SLURM_LOCALID; exec python train_wide.py'
