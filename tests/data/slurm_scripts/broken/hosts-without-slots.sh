#!/bin/bash
#SBATCH --job-name=ds-vit
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=1
#SBATCH --gres=gpu:2
#SBATCH --time=12:00:00
#SBATCH --output=dsvit-%j.log

export NCCL_IB_DISABLE=0
export NCCL_SOCKET_NTHREADS=4
export FI_PROVIDER=efa

export PYTHONUNBUFFERED=1 PYTHONFAULTHANDLER=1

export WANDB_MODE=offline WANDB_DIR=$PWD/wandb
mkdir -p "$WANDB_DIR"

set -e
source ~/envs/ds/bin/activate
scontrol show hostnames "$SLURM_JOB_NODELIST" > myhosts

deepspeed --hostfile=myhosts --master_port=$((15000 + SLURM_JOB_ID % 15000)) \
    train_dsvit.py --deepspeed --deepspeed_config zero2.json
