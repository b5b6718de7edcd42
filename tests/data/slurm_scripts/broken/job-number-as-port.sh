#!/bin/bash
#SBATCH --job-name=dreamer
#SBATCH --nodes=1
#SBATCH --ntasks=2
#SBATCH --gpus-per-node=2
#SBATCH --time=22:00:00
#SBATCH --output=dreamer-%j.log

export NCCL_DEBUG=WARN
export TORCH_NCCL_ASYNC_ERROR_HANDLING=1

echo "start: $(date)"
echo "host: $(hostname), job: $SLURM_JOB_ID"

cd "$SLURM_SUBMIT_DIR" || exit 1

export PYTHONUNBUFFERED=1 PYTHONFAULTHANDLER=1

trap 'echo "exit code $?"' EXIT

export MASTER_ADDR=$(hostname)
export MASTER_PORT=$((10000 + SLURM_JOB_ID))
export WORLD_SIZE=$SLURM_NTASKS
srun bash -c 'RANK=$SLURM_PROCID LOCAL_RANK=$SLURM_LOCALID python train_dreamer.py --env crafter'
