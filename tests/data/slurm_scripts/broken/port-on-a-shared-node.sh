#!/bin/bash
#SBATCH --job-name=prefs
#SBATCH --nodes=1
#SBATCH --ntasks=2
#SBATCH --gpus-per-node=2
#SBATCH --time=4:00:00
#SBATCH --output=prefs-%j.log

export NCCL_DEBUG=WARN
export TORCH_NCCL_ASYNC_ERROR_HANDLING=1

export CUDA_DEVICE_MAX_CONNECTIONS=1
export TOKENIZERS_PARALLELISM=false

trap 'echo "exit code $?"' EXIT

free -g | head -n 2
df -h /tmp | tail -n 1

cd "$SLURM_SUBMIT_DIR" || exit 1

export MASTER_ADDR=$(hostname)
export MASTER_PORT=29500
export WORLD_SIZE=$SLURM_NTASKS
srun bash -c 'RANK=$SLURM_PROCID LOCAL_RANK=$SLURM_LOCALID python train_prefs.py'
