#!/bin/bash
#SBATCH --job-name=blip
#SBATCH --nodes=1
#SBATCH --gpus-per-node=2
#SBATCH --time=15:00:00
#SBATCH --output=blip-%j.log

export NCCL_IB_DISABLE=0
export NCCL_SOCKET_NTHREADS=4
export FI_PROVIDER=efa

export PYTHONUNBUFFERED=1 PYTHONFAULTHANDLER=1

export CUDA_DEVICE_MAX_CONNECTIONS=1
export TOKENIZERS_PARALLELISM=false

set -euo pipefail
source ~/envs/vision/bin/activate
accelerate launch --num_processes 2 --main_process_port $((15000 + SLURM_JOB_ID % 15000)) \
    train_blip.py
    --captions data/cc3m \
    --epochs 5
