#!/bin/bash
#SBATCH --job-name=trocr
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=1
#SBATCH --gpus-per-node=2
#SBATCH --exclusive
#SBATCH --time=13:00:00
#SBATCH --output=trocr-%j.log

echo "start: $(date)"
echo "host: $(hostname), job: $SLURM_JOB_ID"

export PYTHONUNBUFFERED=1 PYTHONFAULTHANDLER=1

log() { echo "[$(date +%H:%M:%S)] $*"; }
log "nodes: $SLURM_JOB_NODELIST"

head=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
srun torchrun \
    --nproc_per_node=2 \
    --rdzv_backend=c10d \
    --rdzv_id=trocr-$SLURM_JOB_ID \
    --rdzv_endpoint=$head:29603 \
    train_trocr.py --lines iam
