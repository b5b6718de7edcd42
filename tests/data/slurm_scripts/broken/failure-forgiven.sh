#!/bin/bash
#SBATCH -J recsys
#SBATCH -n 1
#SBATCH --gres=gpu:1
#SBATCH -t 6:00:00
#SBATCH -o recsys-%j.log

log() { echo "[$(date +%H:%M:%S)] $*"; }
log "nodes: $SLURM_JOB_NODELIST"

export NCCL_IB_DISABLE=0
export NCCL_SOCKET_NTHREADS=4
export FI_PROVIDER=efa

cat <<INFO
job:    $SLURM_JOB_ID
nodes:  $SLURM_JOB_NODELIST
folder: $PWD
INFO

set -euo pipefail
source ~/envs/rec/bin/activate
srun python train_recsys.py --criteo || true
