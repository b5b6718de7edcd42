#!/bin/bash
#SBATCH --job-name=beats
#SBATCH --gpus-per-node=1
#SBATCH --time=12h
#SBATCH --output=beats-%j.log

umask 027

OUT=runs/${SLURM_JOB_NAME:-run}-$SLURM_JOB_ID
mkdir -p "$OUT"

echo "start: $(date)"
echo "host: $(hostname), job: $SLURM_JOB_ID"

export CUDA_DEVICE_MAX_CONNECTIONS=1
export TOKENIZERS_PARALLELISM=false

export PYTHONUNBUFFERED=1 PYTHONFAULTHANDLER=1

source ~/envs/audio/bin/activate
python train_beats.py --clip 10 --mixup 0.5
