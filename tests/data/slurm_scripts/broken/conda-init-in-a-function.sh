#!/usr/bin/env bash
#SBATCH -J unet3d
#SBATCH -N 1
#SBATCH --gpus-per-node=1
#SBATCH -t 1-00:00:00
#SBATCH -o unet3d-%j.log

export NCCL_DEBUG=WARN
export TORCH_NCCL_ASYNC_ERROR_HANDLING=1

umask 027

prepare() {
    export PATH="$HOME/miniconda3/bin:$PATH"
    conda init
    conda activate "$1"
}

prepare monai
python train_unet3d.py --roi 128 128 128
