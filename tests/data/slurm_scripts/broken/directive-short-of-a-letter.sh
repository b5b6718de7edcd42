#!/bin/bash
#SBATCH --job-name=letters
#SBATH --ntasks=2
#SBATCH --nodes=1
#SBATCH --gpus-per-node=2
#SBATCH --time=6:00:00
#SBATCH --output=letters-%j.log

free -g | head -n 2
df -h /tmp | tail -n 1

export NCCL_DEBUG=WARN
export TORCH_NCCL_ASYNC_ERROR_HANDLING=1

export TRITON_CACHE_DIR=/tmp/triton-$SLURM_JOB_ID
export TORCHINDUCTOR_CACHE_DIR=/tmp/inductor-$SLURM_JOB_ID

OUT=runs/${SLURM_JOB_NAME:-run}-$SLURM_JOB_ID
mkdir -p "$OUT"

umask 027

export MASTER_ADDR=$(hostname)
export MASTER_PORT=$((15000 + SLURM_JOB_ID % 15000))
srun bash -c 'RANK=$SLURM_PROCID LOCAL_RANK=$SLURM_LOCALID WORLD_SIZE=$SLURM_NTASKS python train_letters.py'
