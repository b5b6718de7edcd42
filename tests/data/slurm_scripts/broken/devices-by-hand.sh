#!/bin/bash
#SBATCH --job-name=pix2pix
#SBATCH --ntasks=1
#SBATCH --gres=gpu:2
#SBATCH --time=9:00:00
#SBATCH --output=pix-%j.log

export PYTHONUNBUFFERED=1 PYTHONFAULTHANDLER=1

export NCCL_IB_DISABLE=0
export NCCL_SOCKET_NTHREADS=4
export FI_PROVIDER=efa

export NCCL_DEBUG=WARN
export TORCH_NCCL_ASYNC_ERROR_HANDLING=1

# -----------------------------------------------------------------
# settings
# -----------------------------------------------------------------

START=$(date +%s)
REVISION=$(git rev-parse --short HEAD 2>/dev/null || echo unknown)
echo "revision $REVISION, started at $START"

export CUDA_VISIBLE_DEVICES=0,1
source ~/envs/vision/bin/activate
torchrun --standalone --nproc_per_node=2 train_pix2pix.py --dataset maps
