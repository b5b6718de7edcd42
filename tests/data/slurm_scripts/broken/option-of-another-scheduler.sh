#!/bin/bash
#SBATCH --job-name=ocr
#SBATCH --ntasks=1
#SBATCH --num-gpus=1
#SBATCH --time=9:00:00
#SBATCH --output=ocr-%j.log

START=$(date +%s)
REVISION=$(git rev-parse --short HEAD 2>/dev/null || echo unknown)
echo "revision $REVISION, started at $START"

test -d figures || mkdir figures

trap 'echo "exit code $?"' EXIT

readonly PROJECT=${PROJECT:-lab}
echo "project $PROJECT"

export NCCL_IB_DISABLE=0
export NCCL_SOCKET_NTHREADS=4
export FI_PROVIDER=efa

log() { echo "[$(date +%H:%M:%S)] $*"; }
log "nodes: $SLURM_JOB_NODELIST"

module load python/3.11
source ~/envs/ocr/bin/activate
python train_ocr.py --charset latin
