#!/bin/bash
#SBATCH --job-name=clean-sif
#SBATCH --nodes=1
#SBATCH --ntasks=2
#SBATCH --gpus-per-node=2
#SBATCH --time=5:00:00
#SBATCH --output=cleansif-%j.log

echo "start: $(date)"
echo "host: $(hostname), job: $SLURM_JOB_ID"

OUT=runs/${SLURM_JOB_NAME:-run}-$SLURM_JOB_ID
mkdir -p "$OUT"

if [ -n "${DEBUG:-}" ]; then
    set -x
fi

export PYTHONUNBUFFERED=1 PYTHONFAULTHANDLER=1

export CUDA_DEVICE_MAX_CONNECTIONS=1
export TOKENIZERS_PARALLELISM=false

export MASTER_ADDR=$(hostname) MASTER_PORT=$((15000 + SLURM_JOB_ID % 15000)) WORLD_SIZE=2
srun bash -c 'export RANK=$SLURM_PROCID LOCAL_RANK=$SLURM_LOCALID
    exec apptainer exec --nv --cleanenv torch.sif python train_clean.py'
