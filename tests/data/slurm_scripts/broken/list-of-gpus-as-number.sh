#!/bin/bash
#SBATCH --job-name=toxicity
#SBATCH --ntasks=1
#SBATCH --gpus=2
#SBATCH --time=4:00:00
#SBATCH --output=toxicity-%j.log

readonly PROJECT=${PROJECT:-lab}
echo "project $PROJECT"

log() { echo "[$(date +%H:%M:%S)] $*"; }
log "nodes: $SLURM_JOB_NODELIST"

export NCCL_DEBUG=WARN
export TORCH_NCCL_ASYNC_ERROR_HANDLING=1

export WANDB_MODE=offline WANDB_DIR=$PWD/wandb
mkdir -p "$WANDB_DIR"

export NCCL_IB_DISABLE=0
export NCCL_SOCKET_NTHREADS=4
export FI_PROVIDER=efa

source ~/envs/nlp/bin/activate
torchrun --standalone --nproc_per_node=$CUDA_VISIBLE_DEVICES train_toxicity.py
