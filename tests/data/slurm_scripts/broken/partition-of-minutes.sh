#!/bin/bash
#SBATCH --job-name=day
#SBATCH --ntasks=1
#SBATCH --gpus=1
#SBATCH --time=24
#SBATCH --output=day-%j.log

OUT=runs/${SLURM_JOB_NAME:-run}-$SLURM_JOB_ID
mkdir -p "$OUT"

export WANDB_MODE=offline WANDB_DIR=$PWD/wandb
mkdir -p "$WANDB_DIR"

echo "start: $(date)"
echo "host: $(hostname), job: $SLURM_JOB_ID"

export NCCL_IB_DISABLE=0
export NCCL_SOCKET_NTHREADS=4
export FI_PROVIDER=efa

source ~/envs/nlp/bin/activate
python train_day.py --epochs 300
