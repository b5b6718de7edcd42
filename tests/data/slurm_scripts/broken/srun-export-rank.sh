#!/bin/bash
#SBATCH --job-name=asr
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=4
#SBATCH --gres=gpu:4
#SBATCH --time=7:00:00
#SBATCH --output=asr-%j.log

export PYTHONUNBUFFERED=1 PYTHONFAULTHANDLER=1

cat <<INFO
job:    $SLURM_JOB_ID
nodes:  $SLURM_JOB_NODELIST
folder: $PWD
INFO

OUT=runs/${SLURM_JOB_NAME:-run}-$SLURM_JOB_ID
mkdir -p "$OUT"

free -g | head -n 2
df -h /tmp | tail -n 1

set -e
first=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)

srun --export=ALL,MASTER_ADDR=$first,MASTER_PORT=$((20000 + SLURM_JOB_ID % 9999)),WORLD_SIZE=8,RANK=$SLURM_PROCID \
    python train_asr.py --hours 960
