#!/bin/bash
#SBATCH --job-name=olmo
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=1
#SBATCH --gres=gpu:2
#SBATCH --time=1-00:00:00
#SBATCH --output=olmo-%j.log

# -----------------------------------------------------------------
# settings
# -----------------------------------------------------------------

test -d figures || mkdir figures

log() { echo "[$(date +%H:%M:%S)] $*"; }
log "nodes: $SLURM_JOB_NODELIST"

OUT=runs/${SLURM_JOB_NAME:-run}-$SLURM_JOB_ID
mkdir -p "$OUT"

M=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
LAUNCHER="torchrun --nnodes 2 --nproc_per_node 2 \
    --node_rank \$SLURM_PROCID \
    --master_addr $M --master_port $((15000 + SLURM_JOB_ID % 15000))"

srun $LAUNCHER train_olmo.py --size 1b
