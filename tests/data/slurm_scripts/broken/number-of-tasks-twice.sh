#!/bin/bash
#SBATCH --job-name=merged
#SBATCH --nodes=1
#SBATCH --ntasks-per-node=4
#SBATCH --gpus-per-node=4
#SBATCH --time=8:00:00
#SBATCH --output=merged-%j.log
# from the other script
#SBATCH --ntasks-per-node=1

cd "$SLURM_SUBMIT_DIR" || exit 1

test -d figures || mkdir figures

export CUDA_DEVICE_MAX_CONNECTIONS=1
export TOKENIZERS_PARALLELISM=false

export MASTER_ADDR=$(hostname)
export MASTER_PORT=$((15000 + SLURM_JOB_ID % 15000))
srun bash -c 'RANK=$SLURM_PROCID LOCAL_RANK=$SLURM_LOCALID WORLD_SIZE=$SLURM_NTASKS python train_merged.py'
