#!/bin/bash
#SBATCH -J beside
#SBATCH -n 1
#SBATCH --gpus=2
#SBATCH -t 5:00:00
#SBATCH -o beside-%j.log

echo "start: $(date)"
echo "host: $(hostname), job: $SLURM_JOB_ID"

OUT=runs/${SLURM_JOB_NAME:-run}-$SLURM_JOB_ID
mkdir -p "$OUT"

readonly PROJECT=${PROJECT:-lab}
echo "project $PROJECT"

export NCCL_IB_DISABLE=0
export NCCL_SOCKET_NTHREADS=4
export FI_PROVIDER=efa

set -e
[ -f settings.sh ] || echo 'export LR=1e-4' >settings.sh
source "$(dirname "$0")/settings.sh"

torchrun --standalone --nproc_per_node=2 train_beside.py --lr "$LR"
