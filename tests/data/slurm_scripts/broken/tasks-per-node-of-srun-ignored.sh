#!/bin/bash
#SBATCH -J beit
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=2
#SBATCH --gres=gpu:2
#SBATCH --time=10:00:00
#SBATCH -o beit-%j.log

log() { echo "[$(date +%H:%M:%S)] $*"; }
log "nodes: $SLURM_JOB_NODELIST"

export NCCL_IB_DISABLE=0
export NCCL_SOCKET_NTHREADS=4
export FI_PROVIDER=efa

rdzv=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1):$((15000 + SLURM_JOB_ID % 15000))

srun --ntasks-per-node=1 python -m torch.distributed.run \
    --nnodes $SLURM_NNODES --nproc_per_node 2 \
    --rdzv_backend c10d --rdzv_endpoint $rdzv --rdzv_id $SLURM_JOB_ID train_beit.py
