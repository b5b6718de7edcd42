#!/bin/bash
#SBATCH --job-name=flow
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=2
#SBATCH --gpus-per-node=2
#SBATCH --time=8:30:00
#SBATCH --output=flow-%j.log

export HF_HOME=$HOME/cache/huggingface
export HF_DATASETS_OFFLINE=1
export TRANSFORMERS_OFFLINE=1

export PYTHONUNBUFFERED=1 PYTHONFAULTHANDLER=1

free -g | head -n 2
df -h /tmp | tail -n 1

OUT=runs/${SLURM_JOB_NAME:-run}-$SLURM_JOB_ID
mkdir -p "$OUT"

export MASTER_ADDR=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
export MASTER_PORT=$((15000 + SLURM_JOB_ID % 15000))
export WORLD_SIZE=$SLURM_NNODES
srun bash -c 'RANK=$SLURM_PROCID LOCAL_RANK=$SLURM_LOCALID python train_flow.py --chairs'
