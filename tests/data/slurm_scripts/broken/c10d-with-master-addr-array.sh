#!/bin/bash
#SBATCH -J galactica
#SBATCH -N 2
#SBATCH --ntasks-per-node=1
#SBATCH --gres=gpu:2
#SBATCH -t 14:00:00
#SBATCH -o gal-%j.out

echo "start: $(date)"
echo "host: $(hostname), job: $SLURM_JOB_ID"

log() { echo "[$(date +%H:%M:%S)] $*"; }
log "nodes: $SLURM_JOB_NODELIST"

export MASTER_ADDR=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
export MASTER_PORT=$((15000 + SLURM_JOB_ID % 15000))

RDZV=(
    --rdzv-backend c10d
    --rdzv-id "$SLURM_JOB_ID"
    --master-addr "$MASTER_ADDR"
    --master-port "$MASTER_PORT"
)
SIZE=(--nnodes "$SLURM_JOB_NUM_NODES" --nproc-per-node 2)

srun python -m torch.distributed.run "${SIZE[@]}" "${RDZV[@]}" train_gal.py --papers data/
