#!/bin/bash
#SBATCH -J mos
#SBATCH -n 1
#sbatch --gres=gpu:1
#SBATCH -t 2:00:00
#SBATCH -o mos-%j.log

export NCCL_IB_DISABLE=0
export NCCL_SOCKET_NTHREADS=4
export FI_PROVIDER=efa

export WANDB_MODE=offline WANDB_DIR=$PWD/wandb
mkdir -p "$WANDB_DIR"

trap 'echo "exit code $?"' EXIT

umask 027

eval "$(conda shell.bash hook)"
conda activate mos
python train_mos.py --config mos.yaml
