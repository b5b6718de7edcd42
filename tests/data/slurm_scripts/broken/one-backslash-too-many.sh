#!/bin/bash
#SBATCH --job-name=swallow
#SBATCH --nodes=1
#SBATCH --ntasks=1
#SBATCH --gpus=2
#SBATCH --time=4:00:00
#SBATCH --output=swallow-%j.log

export WANDB_MODE=offline WANDB_DIR=$PWD/wandb
mkdir -p "$WANDB_DIR"

echo "start: $(date)"
echo "host: $(hostname), job: $SLURM_JOB_ID"

if [ -n "${DEBUG:-}" ]; then
    set -x
fi

log() { echo "[$(date +%H:%M:%S)] $*"; }
log "nodes: $SLURM_JOB_NODELIST"

set -eo pipefail
source ~/envs/nlp/bin/activate

torchrun \
    --standalone \
    --nproc_per_node=2 \
    train_first.py --stage one \
torchrun --standalone --nproc_per_node=2 train_second.py --stage two
