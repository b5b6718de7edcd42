#!/bin/bash
#SBATCH --job-name=double
#SBATCH --ntasks=1
#SBATCH --gpus=2
#SBATCH --time=3:00:00
#SBATCH --output=double-%j.log

OUT=runs/${SLURM_JOB_NAME:-run}-$SLURM_JOB_ID
mkdir -p "$OUT"

export TRITON_CACHE_DIR=/tmp/triton-$SLURM_JOB_ID
export TORCHINDUCTOR_CACHE_DIR=/tmp/inductor-$SLURM_JOB_ID

log() { echo "[$(date +%H:%M:%S)] $*"; }
log "nodes: $SLURM_JOB_NODELIST"

cd "$SLURM_SUBMIT_DIR" || exit 1

export NCCL_DEBUG=WARN
export TORCH_NCCL_ASYNC_ERROR_HANDLING=1

source ~/envs/nlp/bin/activate
torchrun --standalone --nproc_per_node=2 python train_double.py --lr 1e-4
